"""Runs a vmf-candle checkpoint in plain PyTorch, at the mean directions: any network of convolutions, with gain and
shift or without, in a chain or in residual blocks, and vision transformers.

    python3 load_checkpoint.py model.safetensors inputs.safetensors > logits.json

`inputs.safetensors` holds one tensor `images`. The checkpoint's configuration describes the network, in one of two ways:

- `{"plan": [8, 0, 16]}` is a unit with 8 channels, a 2x2 pooling and a unit with 16 channels, with torchvision's names for
  VGG, followed by the mean over the image and the linear layer `classifier`.
- `{"parts": [..], "classifier": "fc"}` lists the parts as `cifar export` writes them: `{"unit": {"layer": LAYER, "pool":
  BOOL}}`, `{"residual": {"first": LAYER, "second": LAYER, "projection": LAYER or null}}`, `{"patches": {"layer": LAYER}}`
  or `{"transformer": {"name": "blocks.0", "heads": 4}}`, where a LAYER is `{"name": "layer1.0.conv1", "norm": "bn1",
  "stride": 1}`: its tensors are at `name`, those of its normalization at `norm` beside it, or without `norm` at
  `NAME.norm`.
"""
import json
import sys
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn import functional as F


class Network:
    def __init__(self, path):
        with safe_open(path, "pt") as file:
            config = json.loads(file.metadata()["vmf"])["progress"]["config"]
        self.state = load_file(path)
        self.parts = config.get("parts") or parts_of(config["plan"])
        self.classifier = config.get("classifier", "classifier")
        self.temperature = config.get("temperature", 1.0)  # what to divide the logits by before a softmax

    def unit(self, layer, x):
        """Convolution and normalization, with the statistics of the noise-free pass."""
        weight = self.state[layer["name"] + ".weight"]
        beside = layer["name"].split(".")[:-1]
        norm = ".".join([*beside, layer["norm"]]) if "norm" in layer else layer["name"] + ".norm"
        mean, var = (self.state[f"{norm}.noise_free_{which}"] for which in ("mean", "var"))
        # Without gain and shift there are no such tensors.
        gain, shift = (self.state.get(f"{norm}.{which}") for which in ("weight", "bias"))
        x = F.conv2d(x, weight, stride=layer.get("stride", 1), padding=weight.shape[-1] // 2)
        return F.batch_norm(x, mean, var, gain, shift, eps=1e-5)

    def linear(self, name, x, rms):
        """Product and gain, with RMS normalization between or without."""
        u = F.linear(x, self.state[name + ".weight"])
        return (rms_norm(u) if rms else u) * self.state[name + ".norm.weight"]

    def patches(self, name, x):
        """Patches of 4x4 pixels as tokens, with their positions."""
        tokens = F.unfold(x, 4, stride=4).transpose(1, 2)
        return self.linear(name, tokens, rms=True) + self.state["positions"]

    def transformer(self, name, heads, x):
        """A block in the style of OLMo 2."""
        query, key, value = (
            self.linear(f"{name}.attention.{which}", x, rms).unflatten(-1, (heads, -1)).transpose(1, 2)
            for which, rms in (("query", True), ("key", True), ("value", False))
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.linear(f"{name}.attention.output", mixed, rms=True)
        gate, up = (self.linear(f"{name}.mlp.{which}", x, rms=False) for which in ("gate", "up"))
        return x + self.linear(f"{name}.mlp.down", F.silu(gate) * up, rms=True)

    def features(self, x):
        for part in self.parts:
            if "unit" in part:
                x = F.relu(self.unit(part["unit"]["layer"], x))
                x = F.max_pool2d(x, 2) if part["unit"]["pool"] else x
            elif "residual" in part:
                block = part["residual"]
                skip = self.unit(block["projection"], x) if block["projection"] else x
                x = F.relu(self.unit(block["second"], F.relu(self.unit(block["first"], x))) + skip)
            elif "patches" in part:
                x = self.patches(part["patches"]["layer"]["name"], x)
            elif "transformer" in part:
                x = self.transformer(part["transformer"]["name"], part["transformer"]["heads"], x)
            else:
                sys.exit(f"this script does not know parts of the kind {list(part)}")
        return x

    def __call__(self, images):
        weight, bias = (self.state[f"{self.classifier}.{which}"] for which in ("weight", "bias"))
        features = self.features(images)
        # The mean over the positions of images (N, C, H, W), or over normalized tokens (N, T, C).
        mean = features.mean((2, 3)) if features.ndim == 4 else rms_norm(features).mean(1)
        return F.linear(mean, weight, bias)


def rms_norm(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def parts_of(plan):
    """The parts of a chain with torchvision's names."""
    parts, index = [], 0
    for width in plan:
        if width == 0:
            parts[-1]["unit"]["pool"] = True
            index += 1
        else:
            layer = {"name": f"features.{index}", "norm": str(index + 1)}
            parts.append({"unit": {"layer": layer, "pool": False}})
            index += 3
    return parts


def load(path):
    return Network(path)


if __name__ == "__main__":
    model, images = load(sys.argv[1]), load_file(sys.argv[2])["images"]
    with torch.no_grad():
        json.dump(model(images).tolist(), sys.stdout)
