// Batch normalization, noise and ReLU in CUDA: the twin of the CPU kernel beside it. Tensors are
// NCHW and contiguous.
//
//     forward     y  = act(xhat + sigma_g z),   xhat = (u - mean) rstd,   rstd = 1 / sqrt(variance + eps)
//     backward    g  = dy [y > 0],   dsigma_g = sum g z,
//                 du = rstd (g - mean(g) - xhat mean(g xhat))    with batch statistics, rstd g with given ones
//
// Bytes per element, with b bytes of storage: forward 3b (`statistics` and `forward` read u, y is
// written), evaluation 2b, backward 5b (`gradient_sums` and `backward` read u and dy, du is
// written). z is never in memory. A kernel that needs it makes it again in registers, and with it
// the sign of y, so the backward pass does not read y.
//
// Every kernel is a template over the storage T (float, Half, Bfloat; arithmetic is in float) and
// the width W of the vector that a thread loads at once. W is 4 where the positions of an image are
// a multiple of 4, which makes a vector one Philox block; otherwise it is 1. There are no atomics,
// and every reduction has a fixed order: the same launch gives the same bits.
//
// The file is compiled after noise.cuh and reduction.cuh and before the entry points of one storage
// (see KERNELS at its end), by NVRTC or, in the tests, by a C++ compiler.

// ---------------------------------------------------------------------------------------------------- storage

struct Half {
    u16 bits;
};
struct Bfloat {
    u16 bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Half value) {
#ifdef __CUDACC__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
#else
    return half_to_float(value.bits);
#endif
}
__device__ __forceinline__ float to_float(Bfloat value) { return __uint_as_float((u32)value.bits << 16); }

__device__ __forceinline__ void from_float(float wide, float &value) { value = wide; }
__device__ __forceinline__ void from_float(float wide, Half &value) {
#ifdef __CUDACC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(wide));
#else
    value.bits = float_to_half(wide);
#endif
}
// Round to nearest even in integers: the instruction for it exists only from sm_80 on.
__device__ __forceinline__ void from_float(float wide, Bfloat &value) {
    const u32 bits = __float_as_uint(wide);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    value.bits = (u16)(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T, int W>
struct alignas(sizeof(T) * W) Vector {
    T element[W];
};

template <typename T, int W>
__device__ __forceinline__ void load(const T *from, u64 index, float (&to)[W]) {
    const Vector<T, W> vector = *reinterpret_cast<const Vector<T, W> *>(from + index);
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = to_float(vector.element[j]);
}

template <typename T, int W>
__device__ __forceinline__ void store(T *to, u64 index, const float (&from)[W]) {
    Vector<T, W> vector;
#pragma unroll
    for (int j = 0; j < W; ++j) from_float(from[j], vector.element[j]);
    *reinterpret_cast<Vector<T, W> *>(to + index) = vector;
}

// ------------------------------------------------------------------------------------- arithmetic of an element

// The statistics of one channel. Its mean is the sum mean + remainder: where a channel has mean 10^4
// and deviation 10^-2, rounding the mean to one float would shift xhat by several per cent.
struct Channel {
    float mean, remainder, rstd;

    // statistics = [mean][variance][rstd][remainder], each of `channels` values.
    __device__ __forceinline__ Channel(const Problem &problem, const float *statistics, u32 channel)
        : mean(statistics[channel]),
          remainder(statistics[3 * problem.channels + channel]),
          rstd(statistics[2 * problem.channels + channel]) {}

    // Each operation rounds once and is never contracted, so forward and backward agree on every bit
    // of xhat and on the sign of y.
    __device__ __forceinline__ float normalized(float u) const {
        return __fmul_rn(__fsub_rn(__fsub_rn(u, mean), remainder), rstd);
    }
};

// Whether act let the gradient pass: [y > 0], for y as it was stored.
template <typename T>
__device__ __forceinline__ bool passed(const Problem &problem, float pre_activation) {
    T stored;
    from_float(pre_activation, stored);
    return !problem.relu || to_float(stored) > 0.0f;
}

// sigma, from the number that stands for it.
__device__ __forceinline__ float scale_of(const Problem &problem, float number) {
    if (problem.scale_kind == EXPONENTIAL) return expf(number);
    if (problem.scale_kind == SOFTPLUS) return fmaxf(number, 0.0f) + log1pf(expf(-fabsf(number)));
    return number;
}

// The derivative of sigma with respect to that number.
__device__ __forceinline__ float slope_of(const Problem &problem, float number) {
    if (problem.scale_kind == EXPONENTIAL) return expf(number);
    if (problem.scale_kind == SOFTPLUS) return 1.0f / (1.0f + expf(-number));
    return 1.0f;
}

__device__ __forceinline__ float sigma_of(const Problem &problem, const float *sigma, u32 channel) {
    if (!problem.noise.enabled) return 0.0f;
    // The comparison saves the division in the usual case of one group.
    return scale_of(problem, sigma[channel < problem.channels_per_group ? 0 : channel / problem.channels_per_group]);
}

// z of a vector; zero without noise.
template <int W>
__device__ __forceinline__ void noise_of(const Problem &problem, u64 flat, float (&z)[W]) {
    if (problem.noise.enabled) {
        normals(problem.noise, flat, z);
    } else {
#pragma unroll
        for (int j = 0; j < W; ++j) z[j] = 0.0f;
    }
}

// g and xhat of a vector.
template <typename T, int W>
__device__ __forceinline__ void gradient_of(const Problem &problem, const Channel &channel, float sigma, const T *u,
                                            const T *dy, u64 flat, const float (&z)[W], float (&g)[W],
                                            float (&xhat)[W]) {
    load<T, W>(u, flat, xhat);
    load<T, W>(dy, flat, g);
#pragma unroll
    for (int j = 0; j < W; ++j) {
        xhat[j] = channel.normalized(xhat[j]);
        if (!passed<T>(problem, fmaf(sigma, z[j], xhat[j]))) g[j] = 0.0f;
    }
}

// ------------------------------------------------------------------------------------------------ statistics

// Deviations are taken from a pivot, the first element of the channel. It lies among the values, so
// their differences to it keep the precision that their mean in a single float would lose.
template <typename T>
__device__ __forceinline__ float pivot_of(const T *u, const Problem &problem, u32 channel) {
    return to_float(u[(u64)channel * problem.positions]);
}

__device__ __forceinline__ void store_statistics(float *statistics, const Problem &problem, u32 channel, float mean,
                                                 float variance, float remainder) {
    statistics[channel] = mean;
    statistics[problem.channels + channel] = variance;
    statistics[2 * problem.channels + channel] = rsqrtf(variance + problem.eps);
    statistics[3 * problem.channels + channel] = remainder;
}

// Running estimates that follow the statistics of batches, or null pointers. `Running` in
// launches/arguments.rs mirrors it.
struct Running {
    float *mean[2], *variance[2];
    float weight;    // of the batch
    float unbiased;  // turns the biased variance of the batch into an unbiased one

    __device__ __forceinline__ void follow(u32 channel, float batch_mean, float batch_variance) const {
        // A single NaN would stay in them for good.
        if (0.0f * batch_mean != 0.0f || 0.0f * batch_variance != 0.0f) return;
        for (int set = 0; set < 2; ++set) {
            if (mean[set] == nullptr) continue;
            // With weight 1 nothing of the old value is left, not even a NaN.
            const float old_mean = weight == 1.0f ? 0.0f : (1.0f - weight) * mean[set][channel];
            const float old_variance = weight == 1.0f ? 0.0f : (1.0f - weight) * variance[set][channel];
            mean[set][channel] = old_mean + weight * batch_mean;
            variance[set][channel] = old_variance + weight * unbiased * batch_variance;
        }
    }
};
static_assert(sizeof(Running) == 40, "launches/arguments.rs has the same struct");

template <typename T>
__device__ __forceinline__ void finish_statistics(const T *u, float *statistics, const Running &running,
                                                  const Problem &problem, u32 channel, const Welford &welford) {
    // Knuth's exact sum: mean + remainder = pivot + welford.mean.
    const float pivot = pivot_of(u, problem, channel), mean = pivot + welford.mean;
    const float added = mean - pivot;
    const float remainder = (pivot - (mean - added)) + (welford.mean - added);
    const float variance = welford.squares / welford.count;
    store_statistics(statistics, problem, channel, mean, variance, remainder);
    running.follow(channel, mean, variance);
}

template <typename T, int W>
__device__ __forceinline__ void statistics_of(const T *u, float *partials, float *statistics, const Running &running,
                                              const Problem &problem, const Tiling &tiling) {
    Walk walk(problem, tiling, W);
    Welford welford = {0.0f, 0.0f, 0.0f};
    if (walk.inside()) {
        const float pivot = pivot_of(u, problem, walk.channel());
        for (; walk.inside(); walk.advance()) {
            float x[W];
            load<T, W>(u, walk.flat(problem, W), x);
            Welford own = {(float)W, 0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < W; ++j) own.mean += (x[j] -= pivot) / W;
#pragma unroll
            for (int j = 0; j < W; ++j) own.squares += (x[j] - own.mean) * (x[j] - own.mean);
            welford.merge(own);
        }
    }
    merge_block(walk, welford, Welford{0.0f, 0.0f, 0.0f}, [&](u32 channel, const Welford &sum) {
        if (tiling.parts == 1)
            finish_statistics(u, statistics, running, problem, channel, sum);
        else
            store_partial(partials, problem, tiling, channel, sum);
    });
}

template <typename T>
__device__ __forceinline__ void merge_statistics_of(const T *u, const float *partials, float *statistics,
                                                    const Running &running, const Problem &problem,
                                                    const Tiling &tiling) {
    merge_parts(partials, problem, tiling, Welford{0.0f, 0.0f, 0.0f}, [&](u32 channel, const Welford &sum) {
        finish_statistics(u, statistics, running, problem, channel, sum);
    });
}

// Statistics that are given rather than measured, for evaluation.
extern "C" __global__ void __launch_bounds__(BLOCK)
given_statistics(const float *mean, const float *variance, float *statistics, Problem problem) {
    const u32 channel = blockIdx.x * BLOCK + threadIdx.x;
    if (channel < problem.channels)
        store_statistics(statistics, problem, channel, mean[channel], variance[channel], 0.0f);
}

// ---------------------------------------------------------------------------------------------- elementwise

// Every vector of the tensor in turn, one grid after the other, with its channel: visit(flat, channel).
template <int W, typename Visit>
__device__ __forceinline__ void for_each_vector(const Problem &problem, Visit visit) {
    const u32 columns = problem.positions / W;
    const u64 vectors = (u64)problem.batch * problem.channels * columns, stride = (u64)gridDim.x * BLOCK;
    u64 vector = (u64)blockIdx.x * BLOCK + threadIdx.x;
    if (vector >= vectors) return;
    u32 column = (u32)(vector % columns), channel = (u32)(vector / columns % problem.channels);
    const u32 column_step = (u32)(stride % columns), channel_step = (u32)(stride / columns % problem.channels);
    for (; vector < vectors; vector += stride) {
        visit(vector * W, channel);
        column += column_step;
        channel += channel_step;
        if (column >= columns) {
            column -= columns;
            ++channel;
        }
        if (channel >= problem.channels) channel -= problem.channels;
    }
}

template <typename T, int W>
__device__ __forceinline__ void forward_of(const T *u, const float *statistics, const float *sigma, T *y,
                                           const Problem &problem) {
    for_each_vector<W>(problem, [&](u64 flat, u32 channel) {
        const Channel of_channel(problem, statistics, channel);
        const float scale = sigma_of(problem, sigma, channel);
        float x[W], z[W];
        load<T, W>(u, flat, x);
        noise_of<W>(problem, flat, z);
#pragma unroll
        for (int j = 0; j < W; ++j) {
            x[j] = fmaf(scale, z[j], of_channel.normalized(x[j]));
            // A comparison and not fmaxf, which would turn a NaN into 0 and hide it.
            if (problem.relu && x[j] < 0.0f) x[j] = 0.0f;
        }
        store<T, W>(y, flat, x);
    });
}

// -------------------------------------------------------------------------------------------------- backward

// sums = [mean of g][mean of g xhat][sum of g z], each of `channels` values.
__device__ __forceinline__ void store_sums(float *sums, const Problem &problem, u32 channel, const GradientSums &sum) {
    const float count = (float)((u64)problem.batch * problem.positions);
    sums[channel] = sum.g / count;
    sums[problem.channels + channel] = sum.g_xhat / count;
    sums[2 * problem.channels + channel] = sum.g_z;
}

template <typename T, int W>
__device__ __forceinline__ void gradient_sums_of(const T *u, const T *dy, const float *statistics, const float *sigma,
                                                 float *partials, float *sums, const Problem &problem,
                                                 const Tiling &tiling) {
    Walk walk(problem, tiling, W);
    GradientSums sum = {0.0f, 0.0f, 0.0f};
    if (walk.inside()) {
        const Channel of_channel(problem, statistics, walk.channel());
        const float scale = sigma_of(problem, sigma, walk.channel());
        for (; walk.inside(); walk.advance()) {
            const u64 flat = walk.flat(problem, W);
            float z[W], g[W], xhat[W];
            noise_of<W>(problem, flat, z);
            gradient_of<T, W>(problem, of_channel, scale, u, dy, flat, z, g, xhat);
            GradientSums own = {0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < W; ++j) own.merge({g[j], g[j] * xhat[j], g[j] * z[j]});
            sum.merge(own);
        }
    }
    merge_block(walk, sum, GradientSums{0.0f, 0.0f, 0.0f}, [&](u32 channel, const GradientSums &total) {
        if (tiling.parts == 1)
            store_sums(sums, problem, channel, total);
        else
            store_partial(partials, problem, tiling, channel, total);
    });
}

extern "C" __global__ void __launch_bounds__(BLOCK)
merge_gradient_sums(const float *partials, float *sums, Problem problem, Tiling tiling) {
    merge_parts(partials, problem, tiling, GradientSums{0.0f, 0.0f, 0.0f}, [&](u32 channel, const GradientSums &sum) {
        store_sums(sums, problem, channel, sum);
    });
}

// dsigma of a group, the sum of g z over its channels, or the gradient of what sigma is given as. It
// is added to `base`, if there is one: the gradient that another term of the objective left. One
// block per group.
extern "C" __global__ void __launch_bounds__(BLOCK)
group_gradients(const float *sums, const float *sigma, const float *base, float *dsigma, Problem problem) {
    __shared__ float warp_sums[WARPS];
    const float *g_z = sums + 2 * problem.channels + blockIdx.x * problem.channels_per_group;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    GradientSums sum = {0.0f, 0.0f, 0.0f};
    for (u32 channel = threadIdx.x; channel < problem.channels_per_group; channel += BLOCK) sum.g_z += g_z[channel];
    sum = merge_warp(sum);
    if (lane == 0) warp_sums[warp] = sum.g_z;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int other = 0; other < WARPS; ++other) total += warp_sums[other];
        total *= slope_of(problem, sigma[blockIdx.x]);
        dsigma[blockIdx.x] = base == nullptr ? total : base[blockIdx.x] + total;
    }
}

template <typename T, int W>
__device__ __forceinline__ void backward_of(const T *u, const T *dy, const float *statistics, const float *sigma,
                                            const float *sums, T *du, const Problem &problem) {
    for_each_vector<W>(problem, [&](u64 flat, u32 channel) {
        const Channel of_channel(problem, statistics, channel);
        const float scale = sigma_of(problem, sigma, channel);
        float mean_g = 0.0f, mean_g_xhat = 0.0f;
        if (problem.batch_statistics) {
            mean_g = sums[channel];
            mean_g_xhat = sums[problem.channels + channel];
        }
        float z[W], g[W], xhat[W];
        // Without ReLU the gradient passes whatever the noise is.
#pragma unroll
        for (int j = 0; j < W; ++j) z[j] = 0.0f;
        if (problem.relu) noise_of<W>(problem, flat, z);
        gradient_of<T, W>(problem, of_channel, scale, u, dy, flat, z, g, xhat);
#pragma unroll
        for (int j = 0; j < W; ++j) g[j] = of_channel.rstd * (g[j] - mean_g - xhat[j] * mean_g_xhat);
        store<T, W>(du, flat, g);
    });
}

// ---------------------------------------------------------------------------------- the entry points of a storage

// Whoever compiles this file appends KERNELS(float, 4, f32_by4) and KERNELS(float, 1, f32_by1), or
// the same with Half and f16, or with Bfloat and bf16. A storage is compiled when it is first used.
// The signatures of the launcher ensure that inputs and outputs never share memory.
#define KERNELS(T, W, SUFFIX)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    statistics_##SUFFIX(const T *__restrict__ u, float *__restrict__ partials, float *__restrict__ statistics,        \
                        Running running, Problem problem, Tiling tiling) {                                            \
        statistics_of<T, W>(u, partials, statistics, running, problem, tiling);                                       \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    merge_statistics_##SUFFIX(const T *__restrict__ u, const float *__restrict__ partials,                            \
                              float *__restrict__ statistics, Running running, Problem problem, Tiling tiling) {      \
        merge_statistics_of<T>(u, partials, statistics, running, problem, tiling);                                    \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    forward_##SUFFIX(const T *__restrict__ u, const float *__restrict__ statistics, const float *__restrict__ sigma,  \
                     T *__restrict__ y, Problem problem) {                                                            \
        forward_of<T, W>(u, statistics, sigma, y, problem);                                                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    gradient_sums_##SUFFIX(const T *__restrict__ u, const T *__restrict__ dy, const float *__restrict__ statistics,   \
                           const float *__restrict__ sigma, float *__restrict__ partials, float *__restrict__ sums,   \
                           Problem problem, Tiling tiling) {                                                          \
        gradient_sums_of<T, W>(u, dy, statistics, sigma, partials, sums, problem, tiling);                            \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    backward_##SUFFIX(const T *__restrict__ u, const T *__restrict__ dy, const float *__restrict__ statistics,        \
                      const float *__restrict__ sigma, const float *__restrict__ sums, T *__restrict__ du,            \
                      Problem problem) {                                                                              \
        backward_of<T, W>(u, dy, statistics, sigma, sums, du, problem);                                               \
    }
