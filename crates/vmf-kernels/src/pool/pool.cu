// Maximum pooling over NCHW images in CUDA: the twin of the CPU kernel beside it.
//
//     forward     y[p]  = max over the elements q of window p of x[q]
//     backward    dx[q] = sum of dy[p] over the windows p whose maximum is q
//
// Of several largest elements the first is the maximum. A NaN counts as largest, so that it is not
// hidden; of several NaNs the last one, as in PyTorch. The forward pass writes down which element
// of its window the maximum is, in one byte. The backward pass gathers, so it needs no atomics, and
// reads neither x nor y.
//
// It is compiled after bn_noise.cu, whose storages it uses.

typedef unsigned char u8;

// `PoolArguments` in pool/launches.rs mirrors it.
struct Pooling {
    u32 planes;  // channels of all images
    u32 height, width;
    u32 output_height, output_width;
    u32 window_height, window_width;
    u32 stride, padding;
};

template <typename T>
__device__ __forceinline__ void max_forward_of(const T *x, T *y, u8 *argmax, const Pooling &pool) {
    const u64 outputs = (u64)pool.planes * pool.output_height * pool.output_width;
    for (u64 output = (u64)blockIdx.x * BLOCK + threadIdx.x; output < outputs; output += (u64)gridDim.x * BLOCK) {
        const u32 column = (u32)(output % pool.output_width);
        const u64 line = output / pool.output_width;
        const u32 row = (u32)(line % pool.output_height);
        const T *plane = x + line / pool.output_height * pool.height * pool.width;
        float largest = 0.0f;
        T stored;
        u32 best = 0xffffffffu;
        for (u32 i = 0; i < pool.window_height; ++i) {
            // Above the image the difference wraps around, and is no row of it either.
            const u32 input_row = row * pool.stride + i - pool.padding;
            if (input_row >= pool.height) continue;
            for (u32 j = 0; j < pool.window_width; ++j) {
                const u32 input_column = column * pool.stride + j - pool.padding;
                if (input_column >= pool.width) continue;
                const T element = plane[(u64)input_row * pool.width + input_column];
                const float value = to_float(element);
                if (best == 0xffffffffu || value > largest || value != value) {
                    largest = value;
                    stored = element;
                    best = i * pool.window_width + j;
                }
            }
        }
        y[output] = stored;
        argmax[output] = (u8)best;
    }
}

template <typename T>
__device__ __forceinline__ void max_backward_of(const u8 *argmax, const T *dy, T *dx, const Pooling &pool) {
    const u64 inputs = (u64)pool.planes * pool.height * pool.width;
    for (u64 input = (u64)blockIdx.x * BLOCK + threadIdx.x; input < inputs; input += (u64)gridDim.x * BLOCK) {
        const u32 column = (u32)(input % pool.width) + pool.padding;
        const u64 line = input / pool.width;
        const u32 row = (u32)(line % pool.height) + pool.padding;
        const u64 plane = line / pool.height * pool.output_height * pool.output_width;
        // The windows that contain the element: those that begin at most a window before it.
        const u32 first_row = row < pool.window_height ? 0 : (row - pool.window_height) / pool.stride + 1;
        const u32 first_column = column < pool.window_width ? 0 : (column - pool.window_width) / pool.stride + 1;
        const u32 end_row = min(row / pool.stride + 1, pool.output_height);
        const u32 end_column = min(column / pool.stride + 1, pool.output_width);
        float sum = 0.0f;
        for (u32 i = first_row; i < end_row; ++i) {
            for (u32 j = first_column; j < end_column; ++j) {
                const u64 output = plane + (u64)i * pool.output_width + j;
                const u32 number = (row - i * pool.stride) * pool.window_width + column - j * pool.stride;
                if (argmax[output] == number) sum += to_float(dy[output]);
            }
        }
        from_float(sum, dx[input]);
    }
}

#define MAX_POOL_KERNELS(T, SUFFIX)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
    max_pool_##SUFFIX(const T *__restrict__ x, T *__restrict__ y, u8 *__restrict__ argmax, Pooling pool) {             \
        max_forward_of<T>(x, y, argmax, pool);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
    max_pool_backward_##SUFFIX(const u8 *__restrict__ argmax, const T *__restrict__ dy, T *__restrict__ dx,            \
                               Pooling pool) {                                                                         \
        max_backward_of<T>(argmax, dy, dx, pool);                                                                      \
    }
