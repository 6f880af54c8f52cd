// The mean cross-entropy of labels under a softmax, its gradient, and how many labels are right: the
// twin of the CPU function beside it. A row has the logits of one example.
//
//     loss = mean over rows of  (1 - s) (L - x[label]) + s (L - mean x),     L = ln sum exp x
//     dx   = (softmax(x) - (1 - s) [label] - s / classes) / rows
//
// s is the label smoothing. A label that is no class makes the loss NaN, and so does a logit that is
// not a number: nothing is hidden. The first of several largest logits is the prediction.

// `Labelled` in cross_entropy/launches.rs mirrors it.
struct Labelled {
    u32 rows, classes;
    float smoothing;
};

// A value of a row and its place. The larger value wins, then the smaller place.
struct Largest {
    float value;
    u32 place;

    __device__ __forceinline__ void merge(const Largest &other) {
        // A NaN is larger than every number.
        const bool wins = other.value > value || (other.value != other.value && value == value);
        const bool ties = other.value == value && other.place < place;
        if (wins || ties) {
            value = other.value;
            place = other.place;
        }
    }
    __device__ __forceinline__ Largest from_lane_above(int offset) const {
        return {__shfl_down_sync(ALL_LANES, value, offset), __shfl_down_sync(ALL_LANES, place, offset)};
    }
};

struct Total {
    float exponentials, values;

    __device__ __forceinline__ void merge(const Total &other) {
        exponentials += other.exponentials;
        values += other.values;
    }
    __device__ __forceinline__ Total from_lane_above(int offset) const {
        return {__shfl_down_sync(ALL_LANES, exponentials, offset), __shfl_down_sync(ALL_LANES, values, offset)};
    }
};

// One warp per row. Writes the loss of the row, and 1 if its prediction is right.
template <typename T>
__device__ __forceinline__ void cross_entropy_rows_of(const T *logits, const u32 *labels, T *gradient, float *losses,
                                                      float *right, const Labelled &of) {
    const u32 lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= of.rows) return;
    const u64 start = (u64)row * of.classes;
    const u32 label = labels[row];
    Largest largest = {-__uint_as_float(0x7f800000u), 0xffffffffu};
    for (u32 k = lane; k < of.classes; k += WARP) largest.merge({to_float(logits[start + k]), k});
    largest = merge_warp(largest);
    const float top = __shfl_sync(ALL_LANES, largest.value, 0);
    Total total = {0.0f, 0.0f};
    for (u32 k = lane; k < of.classes; k += WARP) {
        const float shifted = to_float(logits[start + k]) - top;
        total.merge({expf(shifted), shifted});
    }
    total = merge_warp(total);
    const float sum = __shfl_sync(ALL_LANES, total.exponentials, 0);
    const float none = __uint_as_float(0x7fc00000u);
    const float scale = label < of.classes ? 1.0f / (float)of.rows : none;
    for (u32 k = lane; k < of.classes; k += WARP) {
        const float p = expf(to_float(logits[start + k]) - top) / sum;
        const float target = (k == label ? 1.0f - of.smoothing : 0.0f) + of.smoothing / (float)of.classes;
        from_float((p - target) * scale, gradient[start + k]);
    }
    if (lane == 0) {
        const float log_sum = logf(sum);
        const float at = label < of.classes ? to_float(logits[start + label]) - top : none;
        const float mean = total.values / (float)of.classes;
        losses[row] = log_sum - (1.0f - of.smoothing) * at - of.smoothing * mean;
        right[row] = largest.place == label ? 1.0f : 0.0f;
    }
}

// results = [mean loss][number of right predictions]: one block adds the rows in a fixed order.
extern "C" __global__ void __launch_bounds__(BLOCK)
cross_entropy_mean(const float *losses, const float *right, float *results, Labelled of) {
    __shared__ double sums[2][BLOCK];
    double loss = 0.0, count = 0.0;
    for (u32 row = threadIdx.x; row < of.rows; row += BLOCK) {
        loss += losses[row];
        count += right[row];
    }
    sums[0][threadIdx.x] = loss;
    sums[1][threadIdx.x] = count;
    __syncthreads();
    if (threadIdx.x < 2) {
        double total = 0.0;
        for (int other = 0; other < BLOCK; ++other) total += sums[threadIdx.x][other];
        results[threadIdx.x] = (float)(threadIdx.x == 0 ? total / of.rows : total);
    }
}

#define CROSS_ENTROPY_KERNEL(T, SUFFIX)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
    cross_entropy_rows_##SUFFIX(const T *__restrict__ logits, const u32 *__restrict__ labels,                          \
                                T *__restrict__ gradient, float *__restrict__ losses, float *__restrict__ right,       \
                                Labelled of) {                                                                         \
        cross_entropy_rows_of<T>(logits, labels, gradient, losses, right, of);                                         \
    }
