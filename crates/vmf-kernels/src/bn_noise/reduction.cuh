// Ordered reductions over the batch and the positions of every channel, for bn_noise.cu.
//
// A reduction has up to three steps. First a thread sums what it walks over. Then the threads of a
// block are merged through shared memory and warp shuffles. Where a channel is cut into several
// parts, a second kernel merges the parts. Each step has a fixed order, so the same launch gives
// the same bits every time.

constexpr int BLOCK = 256;  // threads of every block; launches/mod.rs has the same constant
constexpr int WARP = 32;
constexpr int WARPS = BLOCK / WARP;
constexpr u32 ALL_LANES = 0xffffffffu;

// What is computed. `Problem` in launches/arguments.rs mirrors it.
struct Problem {
    Noise noise;
    u32 batch;
    u32 channels;
    u32 positions;           // pixels of an image, height x width
    u32 channels_per_group;  // consecutive channels that share one sigma
    u32 relu;
    u32 batch_statistics;    // 1 if mean and rstd depend on u, which the backward pass accounts for
    float eps;               // added to the variance under the root
    u32 scale_kind;          // what the scales of the noise are given as: SIGMA, EXPONENTIAL or SOFTPLUS
};

// sigma itself, or the rho of sigma = exp(rho) or sigma = ln(1 + exp(rho)).
constexpr u32 SIGMA = 0, EXPONENTIAL = 1, SOFTPLUS = 2;

// How a reduction is divided among blocks. `Tiling` in launches/arguments.rs mirrors it.
//
// A tile is a run of consecutive channels. It is more than one channel where a channel alone has
// too few positions to fill the lanes of a warp with consecutive addresses. A tile is cut into
// `parts`, each the work of one block. Lengths are counted in vectors: the W consecutive elements
// that a thread loads at once.
struct Tiling {
    u64 part_length;  // of a part: vectors if a tile is one channel, else rows (the tile in one image)
    u32 channels_per_tile;
    u32 parts;
};
static_assert(sizeof(Problem) == 64 && sizeof(Tiling) == 16, "launches/arguments.rs has the same structs");

// Count, mean and sum of squared deviations. Two of them merge without cancellation (Chan, Golub
// and LeVeque 1979).
struct Welford {
    float count, mean, squares;

    __device__ __forceinline__ void merge(const Welford &other) {
        const float total = count + other.count;
        const float weight = total > 0.0f ? other.count / total : 0.0f;
        const float delta = other.mean - mean;
        mean += delta * weight;
        squares += other.squares + delta * delta * count * weight;
        count = total;
    }
    __device__ __forceinline__ Welford from_lane_above(int offset) const {
        return {__shfl_down_sync(ALL_LANES, count, offset), __shfl_down_sync(ALL_LANES, mean, offset),
                __shfl_down_sync(ALL_LANES, squares, offset)};
    }
};

// The sums of the backward pass over a channel: of g, g xhat and g z.
struct GradientSums {
    float g, g_xhat, g_z;

    __device__ __forceinline__ void merge(const GradientSums &other) {
        g += other.g;
        g_xhat += other.g_xhat;
        g_z += other.g_z;
    }
    __device__ __forceinline__ GradientSums from_lane_above(int offset) const {
        return {__shfl_down_sync(ALL_LANES, g, offset), __shfl_down_sync(ALL_LANES, g_xhat, offset),
                __shfl_down_sync(ALL_LANES, g_z, offset)};
    }
};

// The merge of all lanes, in lane 0.
template <typename Sum>
__device__ __forceinline__ Sum merge_warp(Sum sum) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum.merge(sum.from_lane_above(offset));
    return sum;
}

// What one thread does of its block's part of a tile: every `stride`-th vector from `vector` on,
// before `end`. Row and column move along without a division in the loop.
struct Walk {
    u64 vector, end;
    u32 row, column;  // image, and vector within the tile's row
    u32 row_step, column_step;
    u32 columns, columns_per_channel;  // vectors of the tile's row, and of one channel in it
    u32 first_channel, channels;
    u32 stride;  // threads that take part
    bool one_channel;

    __device__ __forceinline__ Walk(const Problem &problem, const Tiling &tiling, u32 width) {
        const u32 tile = blockIdx.x / tiling.parts, part = blockIdx.x % tiling.parts;
        columns_per_channel = problem.positions / width;
        first_channel = tile * tiling.channels_per_tile;
        channels = min(tiling.channels_per_tile, problem.channels - first_channel);
        columns = channels * columns_per_channel;
        one_channel = tiling.channels_per_tile == 1;
        // With several channels a thread keeps its column, so that all it sums is of one channel.
        stride = one_channel ? BLOCK : BLOCK / columns * columns;
        row_step = stride / columns;
        column_step = stride % columns;
        const u64 length = one_channel ? tiling.part_length : tiling.part_length * columns;
        const u64 all = (u64)problem.batch * columns, begin = part * length;
        end = min(begin + length, all);
        vector = begin + threadIdx.x;
        row = (u32)(vector / columns);
        column = (u32)(vector % columns);
    }
    __device__ __forceinline__ bool inside() const { return threadIdx.x < stride && vector < end; }
    __device__ __forceinline__ void advance() {
        vector += stride;
        row += row_step;
        column += column_step;
        if (column >= columns) {
            column -= columns;
            ++row;
        }
    }
    // The channel whose sum this thread keeps.
    __device__ __forceinline__ u32 channel() const {
        return one_channel ? first_channel : first_channel + column / columns_per_channel;
    }
    __device__ __forceinline__ u64 flat(const Problem &problem, u32 width) const {
        return ((u64)row * problem.channels + first_channel) * problem.positions + (u64)column * width;
    }
};

// Merges the sums of the threads channel by channel, one warp per channel. Lane 0 of that warp is
// given the result: finish(channel, sum).
template <typename Sum, typename Finish>
__device__ __forceinline__ void merge_block(const Walk &walk, const Sum &mine, const Sum &zero, Finish finish) {
    __shared__ Sum sums[BLOCK];
    sums[threadIdx.x] = mine;
    __syncthreads();
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // The threads of a channel are all of them, or `width` neighbours in each of stride / columns rows.
    const u32 width = walk.one_channel ? BLOCK : walk.columns_per_channel;
    const u32 pitch = walk.one_channel ? BLOCK : walk.columns;
    const u32 members = walk.stride / pitch * width;
    for (u32 channel = warp; channel < walk.channels; channel += WARPS) {
        Sum sum = zero;
        for (u32 member = lane; member < members; member += WARP)
            sum.merge(sums[member / width * pitch + channel * width + member % width]);
        sum = merge_warp(sum);
        if (lane == 0) finish(walk.first_channel + channel, sum);
    }
}

// Partial sums are stored field by field, [field][channel][part].
template <typename Sum>
__device__ __forceinline__ void store_partial(float *partials, const Problem &problem, const Tiling &tiling,
                                              u32 channel, const Sum &sum) {
    const u64 plane = (u64)problem.channels * tiling.parts;
    const u64 at = (u64)channel * tiling.parts + blockIdx.x % tiling.parts;
    const float *fields = reinterpret_cast<const float *>(&sum);
    for (int field = 0; field < 3; ++field) partials[field * plane + at] = fields[field];
}

// One warp per channel merges the channel's parts in their order.
template <typename Sum, typename Finish>
__device__ __forceinline__ void merge_parts(const float *partials, const Problem &problem, const Tiling &tiling,
                                            const Sum &zero, Finish finish) {
    const u32 lane = threadIdx.x % WARP, channel = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (channel >= problem.channels) return;
    const u64 plane = (u64)problem.channels * tiling.parts, first = (u64)channel * tiling.parts;
    Sum sum = zero;
    for (u32 part = lane; part < tiling.parts; part += WARP) {
        const u64 at = first + part;
        sum.merge({partials[at], partials[plane + at], partials[2 * plane + at]});
    }
    sum = merge_warp(sum);
    if (lane == 0) finish(channel, sum);
}
