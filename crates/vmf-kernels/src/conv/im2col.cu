// Convolutions as matrix products, for devices without cuDNN.
//
//     im2col    columns[n][(c, i, j)][p] = x[n][c][the element that window p meets at (i, j)], 0 in the padding
//     col2im    dx[n][c][q] = sum over (i, j) and the p that meet q at (i, j) of columns[n][(c, i, j)][p]
//
// The second gathers, so it needs no atomics and gives the same bits every time.

// `Geometry` in conv/launches.rs mirrors it.
struct Geometry {
    u32 planes;  // channels of all images
    u32 height, width;
    u32 output_height, output_width;
    u32 kernel_height, kernel_width;
    u32 stride, padding, dilation;
};

template <typename T>
__device__ __forceinline__ void im2col_of(const T *x, T *columns, const Geometry &of) {
    const u32 positions = of.output_height * of.output_width, taps = of.kernel_height * of.kernel_width;
    const u64 all = (u64)of.planes * taps * positions;
    for (u64 at = (u64)blockIdx.x * BLOCK + threadIdx.x; at < all; at += (u64)gridDim.x * BLOCK) {
        const u32 p = (u32)(at % positions);
        const u64 line = at / positions;
        const u32 tap = (u32)(line % taps);
        // Outside the image the differences wrap around, or are too large.
        const u32 row = p / of.output_width * of.stride + tap / of.kernel_width * of.dilation - of.padding;
        const u32 column = p % of.output_width * of.stride + tap % of.kernel_width * of.dilation - of.padding;
        T element;
        from_float(0.0f, element);
        if (row < of.height && column < of.width) element = x[(line / taps * of.height + row) * of.width + column];
        columns[at] = element;
    }
}

template <typename T>
__device__ __forceinline__ void col2im_of(const T *columns, T *dx, const Geometry &of) {
    const u32 positions = of.output_height * of.output_width, taps = of.kernel_height * of.kernel_width;
    const u64 all = (u64)of.planes * of.height * of.width;
    for (u64 at = (u64)blockIdx.x * BLOCK + threadIdx.x; at < all; at += (u64)gridDim.x * BLOCK) {
        const u32 column = (u32)(at % of.width) + of.padding;
        const u64 line = at / of.width;
        const u32 row = (u32)(line % of.height) + of.padding;
        const u64 plane = line / of.height * taps;
        float sum = 0.0f;
        for (u32 tap = 0; tap < taps; ++tap) {
            // A window that begins after the element wraps around, and is none of them.
            const u32 down = row - tap / of.kernel_width * of.dilation;
            const u32 right = column - tap % of.kernel_width * of.dilation;
            if (down % of.stride != 0 || right % of.stride != 0) continue;
            const u32 i = down / of.stride, j = right / of.stride;
            if (i < of.output_height && j < of.output_width)
                sum += to_float(columns[(plane + tap) * positions + i * of.output_width + j]);
        }
        from_float(sum, dx[at]);
    }
}

#define IM2COL_KERNELS(T, SUFFIX)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
    im2col_##SUFFIX(const T *__restrict__ x, T *__restrict__ columns, Geometry of) {                                   \
        im2col_of<T>(x, columns, of);                                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
    col2im_##SUFFIX(const T *__restrict__ columns, T *__restrict__ dx, Geometry of) {                                  \
        col2im_of<T>(columns, dx, of);                                                                                 \
    }
