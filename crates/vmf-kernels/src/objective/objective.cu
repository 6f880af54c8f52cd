// The objective of a step and the gradient of its KL, in double precision: the twin of the CPU
// function beside it. rho is the free parameter of a layer's sigma.
//
//     total = nll + weight KL,     KL = sum over layers and groups of  F ln(1 + exp(x)),
//     x = ln(D / (D - 1)) - 2 ln sigma,     F = M / G (D - 1) / 2
//     slope = weight dKL/drho = -2 weight F / (1 + exp(-x)) dln sigma/drho
//
// One block: a network has a few dozen such numbers, and with an operation of its own for each step
// of these formulas they would take some hundred launches.

// A layer in device memory. `Layer` in objective/launches.rs mirrors it.
struct Layer {
    const float *rho;
    double log_ratio, factor;
    u32 groups, first_slope;
    u32 kind;  // as in `Problem`
    u32 unused;
};
static_assert(sizeof(Layer) == 40, "objective/launches.rs has the same struct");

__device__ __forceinline__ double softplus_of(double x) { return (x > 0.0 ? x : 0.0) + log1p(exp(x > 0.0 ? -x : x)); }
__device__ __forceinline__ double logistic_of(double x) {
    const double tail = exp(x > 0.0 ? -x : x);
    return (x > 0.0 ? 1.0 : tail) / (1.0 + tail);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
objective(const Layer *layers, const float *nll, const double *weight, float *slopes, double *kl, float *total,
          u32 count) {
    __shared__ double terms[BLOCK];
    double mine = 0.0;
    for (u32 i = threadIdx.x; i < count; i += BLOCK) {
        const Layer layer = layers[i];
        for (u32 group = 0; group < layer.groups; ++group) {
            const double rho = layer.rho[group];
            double log_sigma = rho, slope = 1.0;
            if (layer.kind == SOFTPLUS) {
                const double sigma = softplus_of(rho);
                log_sigma = log(sigma);
                slope = logistic_of(rho) / sigma;
            }
            const double x = layer.log_ratio - 2.0 * log_sigma;
            mine += layer.factor * softplus_of(x);
            slopes[layer.first_slope + group] = (float)(-2.0 * *weight * layer.factor * logistic_of(x) * slope);
        }
    }
    terms[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0.0;
        for (int other = 0; other < BLOCK; ++other) sum += terms[other];
        *kl = sum;
        *total = (float)(*nll + *weight * sum);
    }
}
