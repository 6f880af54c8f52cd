"""The calculated tables of scaling.md: python3 docs/scaling.py"""

from math import ceil, log2

# Latency of a message in seconds, bytes per second that a program gets (90 % of the line).
NETWORKS = {
    "10 Gbit/s Ethernet": (30e-6, 0.9 * 10e9 / 8),
    "100 Gbit/s Ethernet": (10e-6, 0.9 * 100e9 / 8),
    "InfiniBand HDR, 200 Gbit/s": (2e-6, 0.9 * 200e9 / 8),
}
CHANNELS = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
RANKS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def weights(width):
    channels = [3] + [round(width * c) for c in CHANNELS]
    return sum(9 * a * b for a, b in zip(channels, channels[1:])) + 10 * channels[-1] + 10


def long_sum(bytes_, ranks, network):
    """Reduce-scatter and all-gather by recursive halving and doubling (Rabenseifner)."""
    latency, rate = network
    return 2 * ceil(log2(ranks)) * latency + 2 * (ranks - 1) / ranks * bytes_ / rate


def short_sum(bytes_, ranks, network):
    """Recursive doubling: every message goes through the logarithm of the ranks."""
    latency, rate = network
    return ceil(log2(ranks)) * (latency + bytes_ / rate)


def communication(width, ranks, network):
    """Seconds of a step: statistics and their gradients for each layer, two short sums, gradients."""
    layers = sum(2 * short_sum(8 * (2 * round(width * c) + 1), ranks, network) for c in CHANNELS)
    return layers + 2 * short_sum(32, ranks, network) + long_sum(4 * weights(width), ranks, network)


def row(name, values):
    print(f"| {name} | " + " | ".join(values) + " |")


def table(title, width, speed, batch, is_strong):
    print(f"\n{title}\n")
    row("ranks", [str(r) for r in RANKS])
    print("|---" * (len(RANKS) + 1) + "|")
    for name, network in NETWORKS.items():
        cells = []
        for ranks in RANKS:
            here = batch / ranks if is_strong else batch
            if here < 1:
                cells.append("")
                continue
            # The rank with the largest share makes all others wait.
            ideal, busy = here / speed, ceil(here) / speed
            cells.append(f"{ideal / (busy + communication(width, ranks, network)):.2f}")
        row(name, cells)


if __name__ == "__main__":
    for width in (1.0, 0.25):
        print(f"width {width:g}: {weights(width):,} weights, {4 * weights(width) / 1e6:.1f} MB")
    core, core_quarter = 64 / 0.4698, 64 / 0.0578
    for width, speed, what in [
        (1.0, 16 * core, f"VGG16, {16 * core:,.0f} images/s a rank"),
        (0.25, 16 * core_quarter, f"VGG16 at width 1/4, {16 * core_quarter:,.0f} images/s a rank"),
        (1.0, 10_000.0, "VGG16, 10,000 images/s a rank"),
    ]:
        table(f"**{what}; a batch of 256 is divided**", width, speed, 256, True)
        table(f"**{what}; 64 images for each rank**", width, speed, 64, False)
