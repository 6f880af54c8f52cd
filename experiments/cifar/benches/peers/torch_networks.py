"""PyTorch's side of `cifar bench`: the same network, batch and step, timed in the same way, reported as JSON.

    python torch_networks.py --model resnet20 --batch 64 --width 1 --threads 1 --layout channels_last

In `channels_last` the noise is drawn in the order of memory, which is several times faster than `randn_like`. sigma is a
constant and there is no KL: less work than the network it is compared with does. `--autocast` computes in bf16 where
PyTorch thinks it safe, with weights in f32: its fastest mode on processors with instructions for it.
"""

import argparse
import json
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VGG16 = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]


# Channels and blocks of each stage, and channels of the first convolution.
RESIDUAL = {
    "resnet18": ([(64, 2), (128, 2), (256, 2), (512, 2)], 64),
    "resnet20": ([(16, 3), (32, 3), (64, 3)], 16),
}


class Unit(nn.Module):
    """Convolution, batch normalization and noise."""

    def __init__(self, inputs, outputs, kernel, stride, args):
        super().__init__()
        self.sigma = 0.0 if args.no_noise else 0.1
        self.channels_last = args.layout == "channels_last"
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, affine=args.affine)

    def noise(self, x):
        if not self.channels_last:
            return torch.randn_like(x)
        batch, channels, height, width = x.shape
        return torch.randn(batch, height, width, channels, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x + self.sigma * self.noise(x) if self.sigma else x


class Vgg16(nn.Module):
    def __init__(self, args):
        super().__init__()
        layers, inputs = [], 3
        for channels, count in VGG16:
            outputs = round(channels * args.width)
            for _ in range(count):
                layers += [Unit(inputs, outputs, 3, 1, args), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, args):
        super().__init__()
        self.first = Unit(inputs, outputs, 3, stride, args)
        self.second = Unit(outputs, outputs, 3, 1, args)
        reshapes = stride != 1 or inputs != outputs
        self.projection = Unit(inputs, outputs, 1, stride, args) if reshapes else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.projection(x))


class ResNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        stages, stem = RESIDUAL[args.model]
        inputs = round(stem * args.width)
        layers = [Unit(3, inputs, 3, 1, args), nn.ReLU()]
        for stage, (channels, count) in enumerate(stages):
            outputs = round(channels * args.width)
            for block in range(count):
                layers.append(Block(inputs, outputs, 2 if stage and not block else 1, args))
                inputs = outputs
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["vgg16", *RESIDUAL], default="vgg16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="channels_last")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--no-noise", action="store_true")
    parser.add_argument("--affine", action="store_true", help="a gain and a shift behind each normalization")
    parser.add_argument("--autocast", action="store_true", help="compute in bf16 where PyTorch thinks it safe")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    channels_last = args.layout == "channels_last"
    model = (Vgg16 if args.model == "vgg16" else ResNet)(args).to(args.device)
    images = torch.randn(args.batch, 3, 32, 32, device=args.device)
    labels = torch.arange(args.batch, device=args.device) % 10

    def wait():
        """A GPU computes asynchronously."""
        if args.device != "cpu":
            torch.cuda.synchronize()

    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)

    def autocast():
        return torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=args.autocast)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    best = [float("inf")] * 4
    for step in range(args.warm_up + args.steps):
        start = clock()
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = F.cross_entropy(model(images), labels)
        forward = clock()
        loss.backward()
        backward = clock()
        optimizer.step()
        wait()
        end = clock()
        if step >= args.warm_up:
            times = [forward - start, backward - forward, end - backward, end - start]
            best = [min(pair) for pair in zip(best, times)]
    # Bytes on macOS, kilobytes elsewhere.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)

    model.eval()
    evaluation = float("inf")
    with torch.no_grad(), autocast():
        for step in range(args.warm_up + args.steps):
            start = clock()
            model(images)
            wait()
            if step >= args.warm_up:
                evaluation = min(evaluation, clock() - start)
    names = ["forward_ms", "backward_ms", "optimizer_ms", "step_ms"]
    report = {name: seconds * 1e3 for name, seconds in zip(names, best)}
    report |= {"evaluation_ms": evaluation * 1e3, "peak_memory_mb": memory, "version": torch.__version__}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
