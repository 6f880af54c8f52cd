"""Writes resnet18.safetensors and resnet18_logits.json: ResNet-18 for small images with two to sixteen channels, after some
training, in the names of torchvision, and its logits for the images of tests/common/mod.rs, `images(7, 100)`.

    pip install torch safetensors && python resnet18.py
"""
import json
import math

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F


def images(count, first):
    """Images of ten classes, each with its own frequency and direction."""
    pixels = []
    for example in range(first, first + count):
        for channel in range(3):
            for pixel in range(64):
                x, y = float(pixel % 8), float(pixel // 8)
                wave = math.sin(0.3 * (example % 10) * (x + 0.5 * channel * y))
                pixels.append(wave + 0.5 * math.sin(12.9898 * (example * 192 + channel * 64 + pixel)))
    labels = torch.tensor([example % 10 for example in range(first, first + count)])
    return torch.tensor(pixels).reshape(count, 3, 8, 8), labels


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for stage in range(4):
            outputs = width << stage
            blocks = [BasicBlock(inputs, outputs, 2 if stage else 1), BasicBlock(outputs, outputs, 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = outputs
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


torch.set_num_threads(1)
torch.manual_seed(0)
model = ResNet18(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(60):
    x, labels = images(16, 16 * step)
    optimizer.zero_grad()
    F.cross_entropy(model(x), labels).backward()
    optimizer.step()
safetensors.torch.save_file(model.state_dict(), "resnet18.safetensors")
with torch.no_grad(), open("resnet18_logits.json", "w") as file:
    json.dump(model.eval()(images(7, 100)[0]).flatten().tolist(), file)
