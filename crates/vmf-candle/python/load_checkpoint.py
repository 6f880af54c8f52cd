"""Runs a vmf-candle checkpoint of a VGG-like network in plain PyTorch, at the mean directions.

    python3 load_checkpoint.py model.safetensors inputs.safetensors > logits.json

`inputs.safetensors` holds one tensor `images`. The checkpoint's configuration describes the network:
`{"plan": [8, 0, 16]}` is a unit with 8 channels, a 2x2 pooling and a unit with 16 channels, followed
by the mean over the image and a linear classifier.
"""
import json
import sys
import torch
from safetensors import safe_open
from safetensors.torch import load_file


def load(path):
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["vmf"])["progress"]["config"]
    plan = config["plan"]
    state, layers = load_file(path), []
    channels = state["features.0.weight"].shape[1]
    for width in plan:
        if width == 0:
            layers.append(torch.nn.MaxPool2d(2))
        else:
            layers += [torch.nn.Conv2d(channels, width, 3, padding=1, bias=False),
                       torch.nn.BatchNorm2d(width, affine=False, track_running_stats=True), torch.nn.ReLU()]
            channels = width
    model = torch.nn.Module()
    model.features = torch.nn.Sequential(*layers)
    model.classifier = torch.nn.Linear(channels, state["classifier.weight"].shape[0])
    for name in [name for name in state if "noise_free" in name]:  # the statistics of the noise-free pass
        state[name.replace("noise_free", "running")] = state[name]
    model.load_state_dict({name: state.get(name, value) for name, value in model.state_dict().items()})
    model.temperature = config.get("temperature", 1.0)  # what to divide the logits by before a softmax
    return model.eval()


if __name__ == "__main__":
    model, images = load(sys.argv[1]), load_file(sys.argv[2])["images"]
    with torch.no_grad():
        logits = model.classifier(model.features(images).mean((2, 3)))
    json.dump(logits.tolist(), sys.stdout)
