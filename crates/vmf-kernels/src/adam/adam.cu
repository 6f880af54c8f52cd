// Adam over all parameters at once, optionally on the sphere: the twin of the CPU kernel beside it.
//
//     g = clip g,   on the sphere  g - (g . w) w / |w|^2
//     m = b1 m + (1 - b1) g       v = b2 v + (1 - b2) g^2
//     w = decay w - rate m / (root_scale sqrt(v) + eps),   on the sphere  w / |w|
//
// Three launches whatever the number of parameters: `adam_squares` sums the squares of the
// gradients, `adam_verdict` decides whether and how far to step, `adam_step` steps. If the loss or a
// gradient is not finite, the verdict is a scale of 0, and nothing changes.

// A parameter of the table in device memory. `Parameter` in adam/launches.rs mirrors it.
struct Parameter {
    float *weight;
    const float *gradient;
    float *first, *second;  // moments
    u32 elements;
    u32 row;           // length of the rows on the sphere, or 0
    u32 first_chunk;   // number of its first block
    u32 chunk_length;  // elements of a block: whole rows on the sphere
    float rate, root_scale, decay;
    u32 unused;
};
static_assert(sizeof(Parameter) == 64, "adam/launches.rs has the same struct");

// `Rule` in adam/launches.rs mirrors it.
struct Rule {
    float beta1, beta2, eps;
    float clip;  // the largest norm of all gradients together, or infinity
    u32 parameters, chunks, extras;
};

// What the host reads back: the scale, 0 if there was no step; the squared norm; and the values of
// the tensors that the host asked for.
constexpr int REPORT_HEAD = 2;

struct Chunk {
    Parameter of;
    u32 begin, end;

    // The chunk of this block: the last parameter whose first chunk is not behind it.
    __device__ __forceinline__ Chunk(const Parameter *table, u32 parameters) {
        u32 low = 0, high = parameters;
        while (high - low > 1) {
            const u32 middle = (low + high) / 2;
            if (table[middle].first_chunk <= blockIdx.x)
                low = middle;
            else
                high = middle;
        }
        of = table[low];
        begin = (blockIdx.x - of.first_chunk) * of.chunk_length;
        end = min(begin + of.chunk_length, of.elements);
    }
};

struct Squares {
    double sum;

    __device__ __forceinline__ void merge(const Squares &other) { sum += other.sum; }
    __device__ __forceinline__ Squares from_lane_above(int offset) const {
        return {__shfl_down_sync(ALL_LANES, sum, offset)};
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
adam_squares(const Parameter *table, double *partials, Rule rule) {
    __shared__ double sums[WARPS];
    const Chunk chunk(table, rule.parameters);
    Squares mine = {0.0};
    for (u32 i = chunk.begin + threadIdx.x; i < chunk.end; i += BLOCK) {
        const double g = chunk.of.gradient[i];
        mine.sum += g * g;
    }
    mine = merge_warp(mine);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = mine.sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0.0;
        for (int warp = 0; warp < WARPS; ++warp) sum += sums[warp];
        partials[blockIdx.x] = sum;
    }
}

// One block. `squares` receives the sum of each parameter, so that the host can name the one that is
// not finite. `watched` points to the loss, which must be finite too, and to the extras after it.
extern "C" __global__ void __launch_bounds__(BLOCK)
adam_verdict(const Parameter *table, const double *partials, const float *const *watched, double *squares,
             float *report, Rule rule) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 parameter = warp; parameter < rule.parameters; parameter += WARPS) {
        const u32 begin = table[parameter].first_chunk;
        const u32 end = parameter + 1 < rule.parameters ? table[parameter + 1].first_chunk : rule.chunks;
        Squares sum = {0.0};
        for (u32 chunk = begin + lane; chunk < end; chunk += WARP) sum.sum += partials[chunk];
        sum = merge_warp(sum);
        if (lane == 0) squares[parameter] = sum.sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0.0;
    for (u32 parameter = 0; parameter < rule.parameters; ++parameter) total += squares[parameter];
    const float norm = (float)sqrt(total), loss = rule.extras > 0 ? *watched[0] : 0.0f;
    // 0 x is 0 for every number, and NaN for what is none.
    const bool finite = 0.0 * total == 0.0 && 0.0f * loss == 0.0f;
    report[0] = finite ? (norm > rule.clip ? rule.clip / norm : 1.0f) : 0.0f;
    report[1] = norm;
    for (u32 extra = 0; extra < rule.extras; ++extra) report[REPORT_HEAD + extra] = *watched[extra];
}

struct Element {
    // Moves one weight and returns it.
    __device__ __forceinline__ static float step(const Parameter &of, const Rule &rule, u32 i, float w, float g) {
        const float m = fmaf(rule.beta1, of.first[i], (1.0f - rule.beta1) * g);
        const float v = fmaf(rule.beta2, of.second[i], (1.0f - rule.beta2) * g * g);
        of.first[i] = m;
        of.second[i] = v;
        return fmaf(-of.rate, m / fmaf(sqrtf(v), of.root_scale, rule.eps), of.decay * w);
    }
};

// A sum over the lanes of a warp, in every lane.
__device__ __forceinline__ double over_warp(double mine) {
    return __shfl_sync(ALL_LANES, merge_warp(Squares{mine}).sum, 0);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
adam_step(const Parameter *table, const float *report, Rule rule) {
    const float scale = report[0];
    if (scale == 0.0f) return;
    const Chunk chunk(table, rule.parameters);
    const Parameter &of = chunk.of;
    if (of.row == 0) {
        for (u32 i = chunk.begin + threadIdx.x; i < chunk.end; i += BLOCK)
            of.weight[i] = Element::step(of, rule, i, of.weight[i], scale * of.gradient[i]);
        return;
    }
    // One warp per row.
    const u32 lane = threadIdx.x % WARP;
    for (u32 row = chunk.begin + threadIdx.x / WARP * of.row; row < chunk.end; row += WARPS * of.row) {
        double along = 0.0, squared = 0.0;
        for (u32 i = row + lane; i < row + of.row; i += WARP) {
            const float w = of.weight[i];
            along += (double)(scale * of.gradient[i]) * w;
            squared += (double)w * w;
        }
        along = over_warp(along);
        squared = over_warp(squared);
        const float radial = squared > 0.0 ? (float)(along / squared) : 0.0f;
        double after = 0.0;
        for (u32 i = row + lane; i < row + of.row; i += WARP) {
            const float w = of.weight[i];
            const float next = Element::step(of, rule, i, w, fmaf(-radial, w, scale * of.gradient[i]));
            of.weight[i] = next;
            after += (double)next * next;
        }
        after = over_warp(after);
        // A row of zeros has no direction, and stays.
        const float length = after > 0.0 ? (float)(1.0 / sqrt(after)) : 1.0f;
        for (u32 i = row + lane; i < row + of.row; i += WARP) of.weight[i] *= length;
    }
}
