// Counter-based Gaussian noise: the CUDA twin of the specification in mod.rs.
//
// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011) turns
//     counter = (element / 4, stream, step, sample)    and    key = (low, high) words of the seed
// into four words r0..r3. Box-Muller turns those into the normals of the elements 4k .. 4k + 3:
//     u1 = ((r0 >> 8) + 1) 2^-24 in (0, 1],   u2 = (r1 >> 8) 2^-24 in [0, 1),
//     z0 = sqrt(-2 ln u1) cos(2 pi u2),       z1 = sqrt(-2 ln u1) sin(2 pi u2),
// and z2, z3 in the same way from r2, r3.
//
// NVRTC needs no header for it, since it includes none. It is compiled in front of the kernels that
// use it.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

// Where the noise of a tensor comes from. `NoiseArguments` in launches/arguments.rs mirrors it.
struct Noise {
    u64 elements_per_sample;  // later elements belong to further samples folded into the batch
    u32 seed_low;
    u32 seed_high;
    u32 stream;
    u32 step;
    u32 sample;
    u32 enabled;
};

struct Words {
    u32 r[4];
};

__device__ __forceinline__ Words philox4x32_10(Words counter, u32 key_low, u32 key_high) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(0xD2511F53u, counter.r[0]), low0 = 0xD2511F53u * counter.r[0];
        const u32 high1 = __umulhi(0xCD9E8D57u, counter.r[2]), low1 = 0xCD9E8D57u * counter.r[2];
        counter = {{high1 ^ counter.r[1] ^ key_low, low1, high0 ^ counter.r[3] ^ key_high, low0}};
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return counter;
}

// sincospif keeps the argument 2 u2 exact. cosf(2 pi u2) would first round the product, and would
// bring the reduction of large arguments, with its local memory, into every kernel.
__device__ __forceinline__ void box_muller(u32 first, u32 second, float &cosine, float &sine) {
    const float u1 = (float)((first >> 8) + 1u) * 0x1p-24f;
    const float two_u2 = (float)(second >> 8) * 0x1p-23f;
    const float radius = sqrtf(-2.0f * logf(u1));
    float s, c;
    sincospif(two_u2, &s, &c);
    cosine = radius * c;
    sine = radius * s;
}

// The normals of four consecutive elements. `flat` and `elements_per_sample` are multiples of 4.
__device__ __forceinline__ void normals(const Noise &noise, u64 flat, float (&z)[4]) {
    u32 quad = (u32)(flat >> 2);
    u32 sample = noise.sample;
    if (flat >= noise.elements_per_sample) {
        const u32 quads_per_sample = (u32)(noise.elements_per_sample >> 2);
        sample += quad / quads_per_sample;
        quad %= quads_per_sample;
    }
    const Words words = philox4x32_10({{quad, noise.stream, noise.step, sample}}, noise.seed_low, noise.seed_high);
    box_muller(words.r[0], words.r[1], z[0], z[1]);
    box_muller(words.r[2], words.r[3], z[2], z[3]);
}

// The normal of any one element.
__device__ __forceinline__ void normals(const Noise &noise, u64 flat, float (&z)[1]) {
    u64 element = flat;
    u32 sample = noise.sample;
    if (flat >= noise.elements_per_sample) {
        const u64 samples = flat / noise.elements_per_sample;
        sample += (u32)samples;
        element = flat - samples * noise.elements_per_sample;
    }
    const u32 quad = (u32)(element >> 2);
    const Words words = philox4x32_10({{quad, noise.stream, noise.step, sample}}, noise.seed_low, noise.seed_high);
    const bool second_pair = (element & 2) != 0;
    float cosine, sine;
    box_muller(second_pair ? words.r[2] : words.r[0], second_pair ? words.r[3] : words.r[1], cosine, sine);
    z[0] = (element & 1) != 0 ? sine : cosine;
}
