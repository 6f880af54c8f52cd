"""PyTorch's side of `cifar bench`: the same network, batch and step, timed in the same way, reported as JSON.

    python torch_vgg.py --batch 64 --width 1 --threads 1 --layout channels_last

In `channels_last` the noise is drawn in the order of memory, which is several times faster than `randn_like`. sigma is a
constant and there is no KL: less work than the network it is compared with does.
"""

import argparse
import json
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

STACKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]


class Vgg16(nn.Module):
    def __init__(self, width, sigma, channels_last):
        super().__init__()
        self.sigma, self.channels_last = sigma, channels_last
        layers, inputs = [], 3
        for channels, count in STACKS:
            outputs = round(channels * width)
            for _ in range(count):
                layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
                layers.append(nn.BatchNorm2d(outputs, affine=False))
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.layers = nn.ModuleList(layers)
        self.classifier = nn.Linear(inputs, 10)

    def noise(self, x):
        if not self.channels_last:
            return torch.randn_like(x)
        batch, channels, height, width = x.shape
        return torch.randn(batch, height, width, channels).permute(0, 3, 1, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.BatchNorm2d):
                if self.sigma:
                    x = x + self.sigma * self.noise(x)
                x = F.relu(x)
        return self.classifier(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="channels_last")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--no-noise", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    channels_last = args.layout == "channels_last"
    model = Vgg16(args.width, 0.0 if args.no_noise else 0.1, channels_last)
    images = torch.randn(args.batch, 3, 32, 32)
    labels = torch.arange(args.batch) % 10
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    best = [float("inf")] * 4
    for step in range(args.warm_up + args.steps):
        start = clock()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        forward = clock()
        loss.backward()
        backward = clock()
        optimizer.step()
        end = clock()
        if step >= args.warm_up:
            times = [forward - start, backward - forward, end - backward, end - start]
            best = [min(pair) for pair in zip(best, times)]
    # Bytes on macOS, kilobytes elsewhere.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)

    model.eval()
    evaluation = float("inf")
    with torch.no_grad():
        for step in range(args.warm_up + args.steps):
            start = clock()
            model(images)
            if step >= args.warm_up:
                evaluation = min(evaluation, clock() - start)
    names = ["forward_ms", "backward_ms", "optimizer_ms", "step_ms"]
    report = {name: seconds * 1e3 for name, seconds in zip(names, best)}
    report |= {"evaluation_ms": evaluation * 1e3, "peak_memory_mb": memory, "version": torch.__version__}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
