// Kernels that return the noise itself. Only the tests compile them, after the source of the library.

extern "C" __global__ void philox_words(const Words *counters, const u32 *keys, Words *words) {
    const u32 i = blockIdx.x * BLOCK + threadIdx.x;
    words[i] = philox4x32_10(counters[i], keys[2 * i], keys[2 * i + 1]);
}

// Makes the same normals twice, from element *start on: four at a time, and one by one.
extern "C" __global__ void noise_normals(const u64 *start, float *by_four, float *by_one, Problem problem) {
    const u64 first = 4 * (u64)(blockIdx.x * BLOCK + threadIdx.x);
    float four[4];
    normals(problem.noise, *start + first, four);
    for (int j = 0; j < 4; ++j) {
        by_four[first + j] = four[j];
        float one[1];
        normals(problem.noise, *start + first + j, one);
        by_one[first + j] = one[0];
    }
}
