"""The roofline of a training step of VGG16 on GPUs: a calculation, not a measurement.

    python3 docs/gpu.py [launches]

It counts multiplications and bytes of every layer, takes a share of the peak of each GPU for both, and adds the time of
launches where the host is slower than the device. The same shares are used for PyTorch.
"""
import sys

BATCH = 256
LAYERS = [(3, 64, 32, 0), (64, 64, 32, 1), (64, 128, 16, 0), (128, 128, 16, 1), (128, 256, 8, 0), (256, 256, 8, 0),
          (256, 256, 8, 1), (256, 512, 4, 0), (512, 512, 4, 0), (512, 512, 4, 1), (512, 512, 2, 0), (512, 512, 2, 0),
          (512, 512, 2, 1)]
WEIGHTS = sum(9 * a * b for a, b, _, _ in LAYERS) + 5130

# Peak of dense products (Tflop/s, TF32; the T4 has none, so FP32) and of memory (GB/s), from NVIDIA's data sheets.
GPUS = {"A100 40 GB": (156, 1555), "H100 SXM": (495, 3350), "RTX 4090": (82.6, 1008), "T4": (8.1, 320)}
PRODUCT, MEMORY = 0.5, 0.8  # shares of the peaks that are reached
LAUNCH = 5e-6               # seconds of host time for each launch


def flops():
    forward = sum(2 * 9 * a * b * size * size for a, b, size, _ in LAYERS)
    first = 2 * 9 * 3 * 64 * 32 * 32  # has no gradient with respect to its input
    return BATCH * (3 * forward - first)


def passes(convolution, unit, pool, edges):
    """Elements moved in a step: passes over u of the convolutions, of what follows, of a pool, and of summing gradients."""
    moved = 0
    for i, (channels, units, size, pooled) in enumerate(LAYERS):
        u, x = BATCH * units * size * size, BATCH * channels * size * size
        moved += convolution * u + 3 * x - (x if i == 0 else 0) + unit * u + (pool * u if pooled else 0) + edges * x
    return moved


# Ours: a convolution writes u, and its gradients read du twice; statistics and output read u and write y (3), the sums and
# the gradient read u and dy and write du (5); Candle writes zeros and adds dx to them (4).
OURS = passes(3, 8, 2.5, 4)
# PyTorch without noise: batch normalization 3 and 5, ReLU 2 and 3.
PLAIN = passes(3, 13, 2.5, 0)
# PyTorch with noise from its own operations: randn 1, times sigma 2, plus 3; backward of the sum 0, of the product 4.
NOISY = passes(3, 23, 2.5, 0)
ADAM = {"ours": 7 + 1, "PyTorch, foreach": 18}  # passes over the weights


def milliseconds(gpu, elements, adam, launches):
    peak, bandwidth = GPUS[gpu]
    products = flops() / (PRODUCT * peak * 1e12)
    memory = 4 * (elements + adam * WEIGHTS) / (MEMORY * bandwidth * 1e9)
    # Products and memory do not overlap between kernels; the host runs beside the device.
    return 1e3 * max(products + memory, launches * LAUNCH)


def main():
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{flops() / 1e12:.2f} Tflop, {4 * OURS / 1e9:.1f} GB in f32 for ours, {4 * PLAIN / 1e9:.1f} for PyTorch without "
          f"noise, {4 * NOISY / 1e9:.1f} with it, {WEIGHTS / 1e6:.1f} million weights")
    print("\n| GPU | ours, with noise | PyTorch, without noise | PyTorch, with noise | ours / PyTorch without noise |")
    print("|---|--:|--:|--:|--:|")
    for gpu in GPUS:
        ours = milliseconds(gpu, OURS, ADAM["ours"], launches)
        plain = milliseconds(gpu, PLAIN, ADAM["PyTorch, foreach"], 250)
        noisy = milliseconds(gpu, NOISY, ADAM["PyTorch, foreach"], 450)
        print(f"| {gpu} | {ours:.1f} ms | {plain:.1f} ms | {noisy:.1f} ms | {ours / plain:.2f} |")


main()
