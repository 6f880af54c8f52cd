"""PyTorch's training step of VGG16 next to `cargo bench --bench vgg_step`: same network, same batch, same optimizer.

    python benches/peers/vgg_step.py [batch] [width divisor] [threads] [steps]

Prints one line a memory layout, with noise and without. With one thread the time is the process's own, so that other
programs on the machine do not lengthen it; otherwise it is wall time. Needs `torch`.
"""

import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


class Vgg16(nn.Module):
    """Convolution, batch normalization without affine part, additive noise, ReLU."""

    def __init__(self, divisor, noise, channels_last):
        super().__init__()
        self.noise, self.channels_last = noise, channels_last
        layers, channels = [], 3
        for width in LAYERS:
            if width == "M":
                layers.append(nn.MaxPool2d(2))
            else:
                layers.append(nn.Conv2d(channels, width // divisor, 3, padding=1, bias=False))
                channels = width // divisor
                layers.append(nn.BatchNorm2d(channels, affine=False))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(channels, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.BatchNorm2d):
                if self.noise and self.channels_last:
                    # Drawn in the tensor's own order: `randn_like` of a channels-last tensor is several times slower.
                    n, c, h, w = x.shape
                    x = x + 0.1 * torch.randn(n, h, w, c).permute(0, 3, 1, 2)
                elif self.noise:
                    x = x + 0.1 * torch.randn_like(x)
                x = F.relu(x)
        return self.head(x.flatten(1))


def run(batch, divisor, threads, steps, noise, channels_last):
    torch.manual_seed(0)
    clock = time.process_time if threads == 1 else time.perf_counter
    model = Vgg16(divisor, noise, channels_last)
    x, labels = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best = [float("inf")] * 4
    for step in range(steps + 1):
        optimizer.zero_grad(set_to_none=True)
        t = [clock()]
        loss = F.cross_entropy(model(x), labels)
        t.append(clock())
        loss.backward()
        t.append(clock())
        optimizer.step()
        t.append(clock())
        if step > 0:
            parts = [t[1] - t[0], t[2] - t[1], t[3] - t[2], t[3] - t[0]]
            best = [min(a, b * 1e3) for a, b in zip(best, parts)]
    model.eval()
    evaluation = float("inf")
    with torch.no_grad():
        for _ in range(steps + 1):
            start = clock()
            model(x)
            evaluation = min(evaluation, (clock() - start) * 1e3)
    forward, backward, adam, step = best
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"torch {torch.__version__} batch {batch} width 1/{divisor} threads {threads} noise {noise} "
        f"{'channels_last' if channels_last else 'nchw'}: step {step:.1f} ms ({batch / step * 1e3:.1f} images/s), "
        f"forward {forward:.1f}, backward {backward:.1f}, adam {adam:.1f}, evaluation {evaluation:.1f} ms; "
        f"memory {memory:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    batch, divisor, threads, steps = (numbers + [64, 1, 1, 5][len(numbers) :])[:4]
    torch.set_num_threads(threads)
    for noise in [True] if "--noise-only" in sys.argv else [True, False]:
        for channels_last in [True, False]:
            run(batch, divisor, threads, steps, noise, channels_last)
