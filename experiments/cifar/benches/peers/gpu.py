"""Times a training step of VGG16 on a GPU next to PyTorch, and prints a table to file.

    cargo build --release -p cifar --features cuda
    python3 -m venv .tools/torch && .tools/torch/bin/pip install torch
    .tools/torch/bin/python experiments/cifar/benches/peers/gpu.py target/release/cifar

Nobody has run it on a GPU yet: docs/gpu.md has a calculation in place of its numbers. Please open an issue with what it
prints. The programs take turns, and the fastest step of each counts. PyTorch uses TF32 for convolutions, as we do.
"""

import json
import pathlib
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 3


def step(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])["step_ms"]


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: gpu.py PATH/TO/cifar [BATCH], with the interpreter that has torch")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU here: this comparison needs one")
    cifar, batch = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "256"
    ours = [cifar, "bench", "--json", "--device", "cuda", "--model", "vgg16", "--width", "1", "--batch", batch, "--steps", "30"]
    theirs = [sys.executable, str(HERE / "torch_networks.py"), "--device", "cuda", "--batch", batch, "--steps", "30"]
    contenders = {
        "ours, with noise": ours,
        "PyTorch, with noise": theirs,
        "PyTorch, with noise, NCHW": [*theirs, "--layout", "nchw"],
        "PyTorch, without noise": [*theirs, "--no-noise"],
        "PyTorch, without noise, bf16": [*theirs, "--no-noise", "--autocast"],
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        for name, command in contenders.items():
            best[name] = min(best[name], step(command))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, batch {batch}\n")
    print("| a step of VGG16 | ms | ours / it |\n|---|--:|--:|")
    for name, milliseconds in best.items():
        print(f"| {name} | {milliseconds:.2f} | {best['ours, with noise'] / milliseconds:.2f} |")


main()
