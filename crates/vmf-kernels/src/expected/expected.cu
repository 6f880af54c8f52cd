// Normalization and the expected activation in CUDA: the twin of the CPU kernel beside it. Tensors
// are NCHW and contiguous.
//
//     m = (u - mean) rstd                      y = E relu(m + s z) = s g(m / s),   g(t) = t Phi(t) + phi(t)
//
// with one s per channel. With pooling, m and s^2 of the elements of a 2x2 window are first reduced
// to those of the largest, pair by pair (Clark 1961).
//
// Bytes per element, with b bytes of storage: 2b, or 5b/4 with pooling. The file is compiled after
// bn_noise.cu, whose storage, vectors and statistics it uses.

// The integrals of the normal tail beyond u >= 0 as the fourth power of a polynomial. normal_cdf.rs
// has the same coefficients, and says where they come from. Beyond END both are 0 to working
// precision.
constexpr float END = 5.6f;

__device__ __forceinline__ float fourth_power(float x) { return (x * x) * (x * x); }

// h(u) = E (z - u)+
__device__ __forceinline__ float mean_excess(float u) {
    const float v = u * u;
    float even = -2.3082443e-6f, odd = 3.5240417e-5f;
    even = fmaf(even, v, -1.4687757e-4f);
    odd = fmaf(odd, v, -2.284908e-4f);
    even = fmaf(even, v, 1.7373156e-3f);
    odd = fmaf(odd, v, 7.826107e-3f);
    even = fmaf(even, v, -1.7692959e-2f);
    odd = fmaf(odd, v, -2.4901634e-1f);
    even = fmaf(even, v, 7.947445e-1f);
    return fourth_power(fmaf(odd, u, even));
}

// Q(u) = P(z > u)
__device__ __forceinline__ float upper_tail(float u) {
    const float v = u * u;
    float even = -3.4435852e-6f, odd = 5.9011218e-5f;
    even = fmaf(even, v, -3.1066415e-4f);
    odd = fmaf(odd, v, -2.6263819e-5f);
    even = fmaf(even, v, 3.7822023e-3f);
    odd = fmaf(odd, v, 4.6606013e-3f);
    even = fmaf(even, v, -5.0202187e-2f);
    odd = fmaf(odd, v, -1.6773327e-1f);
    even = fmaf(even, v, 8.4089637e-1f);
    return fourth_power(fmaf(odd, u, even));
}

// |t|, at most END. A NaN is not above END, so it passes.
__device__ __forceinline__ float distance(float t) {
    const float u = t < 0.0f ? -t : t;
    return u > END ? END : u;
}

// E relu(m + s z)
__device__ __forceinline__ float expected_relu(float m, float s) {
    const float h = mean_excess(distance(m / s));
    return fmaf(s, h, m > 0.0f ? m : 0.0f);
}

// Below this s there is no noise. It keeps 1 / s finite.
constexpr float SMALLEST = 1e-12f;

struct Gaussian {
    float mean, variance;
};

// The larger of two independent Gaussians.
__device__ __forceinline__ Gaussian larger_of(const Gaussian &x, const Gaussian &y) {
    const float sum = x.variance + y.variance, a = sqrtf(sum), d = x.mean - y.mean;
    const float t = d / a, u = distance(t);
    const float h = mean_excess(u), q = upper_tail(u), cdf = t > 0.0f ? 1.0f - q : q;
    const float variance = fmaf(-sum * h, u + h, fmaf(x.variance - y.variance, cdf, y.variance));
    const float least = SMALLEST * SMALLEST;
    return {fmaf(a, h, d > 0.0f ? x.mean : y.mean), variance < least ? least : variance};
}

template <typename T, int W>
__device__ __forceinline__ void expected_of(const T *u, const float *statistics, const float *deviation, T *y,
                                            const Problem &problem) {
    for_each_vector<W>(problem, [&](u64 flat, u32 channel) {
        const Channel of_channel(problem, statistics, channel);
        const float s = deviation[channel] > SMALLEST ? deviation[channel] : SMALLEST;
        float x[W];
        load<T, W>(u, flat, x);
#pragma unroll
        for (int j = 0; j < W; ++j) x[j] = expected_relu(of_channel.normalized(x[j]), s);
        store<T, W>(y, flat, x);
    });
}

// Where the windows of a pooling are. `Windows` in launches/arguments.rs mirrors it.
struct Windows {
    u32 input_width;
    u32 output_width;
    u32 output_height;
    u32 unused;
};
static_assert(sizeof(Windows) == 16, "launches/arguments.rs has the same struct");

// One thread per output, one grid after the other.
template <typename T>
__device__ __forceinline__ void expected_pooled_of(const T *u, const float *statistics, const float *deviation, T *y,
                                                   const Problem &problem, const Windows &windows) {
    const u32 positions = windows.output_width * windows.output_height;
    const u64 outputs = (u64)problem.batch * problem.channels * positions, stride = (u64)gridDim.x * BLOCK;
    for (u64 output = (u64)blockIdx.x * BLOCK + threadIdx.x; output < outputs; output += stride) {
        const u64 plane = output / positions;
        const u32 position = (u32)(output % positions), channel = (u32)(plane % problem.channels);
        const u32 row = position / windows.output_width, column = position % windows.output_width;
        const Channel of_channel(problem, statistics, channel);
        const float s = deviation[channel] > SMALLEST ? deviation[channel] : SMALLEST;
        const T *corner = u + plane * problem.positions + (u64)(2 * row) * windows.input_width + 2 * column;
        const auto element = [&](u32 offset) {
            return Gaussian{of_channel.normalized(to_float(corner[offset])), s * s};
        };
        const Gaussian above = larger_of(element(0), element(1));
        const Gaussian below = larger_of(element(windows.input_width), element(windows.input_width + 1));
        const Gaussian largest = larger_of(above, below);
        from_float(expected_relu(largest.mean, sqrtf(largest.variance)), y[output]);
    }
}

#define EXPECTED_KERNELS(T, W, SUFFIX)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    expected_##SUFFIX(const T *__restrict__ u, const float *__restrict__ statistics,                                  \
                      const float *__restrict__ deviation, T *__restrict__ y, Problem problem) {                      \
        expected_of<T, W>(u, statistics, deviation, y, problem);                                                      \
    }

#define POOLED_KERNEL(T, SUFFIX)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    expected_pooled_##SUFFIX(const T *__restrict__ u, const float *__restrict__ statistics,                           \
                             const float *__restrict__ deviation, T *__restrict__ y, Problem problem,                 \
                             Windows windows) {                                                                       \
        expected_pooled_of<T>(u, statistics, deviation, y, problem, windows);                                         \
    }
