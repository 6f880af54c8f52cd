"""Reference values for src/methods/ivon.rs, from the authors' own package.

Run (writes ivon_steps.json beside this file):

    python -m venv venv
    venv/bin/pip install torch ivon-opt==0.1.3
    venv/bin/python experiments/cifar/tests/golden/ivon_steps.py

The loss is sum(scale * (1 - cos w)) / 2 + sum(w)^4 / 100, in double precision. The curvature decays
fast here, so that every term of its update counts.
"""

import json
from pathlib import Path

import torch
from ivon import IVON

torch.set_default_dtype(torch.float64)
torch.manual_seed(20261118)
start = torch.round(torch.randn(6), decimals=6)
scale = torch.round(torch.rand(6) * 3, decimals=6)
config = dict(lr=0.05, ess=40.0, hess_init=0.7, beta1=0.9, beta2=0.95, weight_decay=0.02)

w = torch.nn.Parameter(start.clone())
optimizer = IVON([w], **config)
group = optimizer.param_groups[0]
steps = []
for _ in range(12):
    deviation = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
    mean = w.detach().clone()
    with optimizer.sampled_params(train=True):
        drawn = w.detach().clone()
        optimizer.zero_grad()
        loss = (scale * (1 - w.cos())).sum() / 2 + w.sum() ** 4 / 100
        loss.backward()
    optimizer.step()
    steps.append(
        {
            "z": ((drawn - mean) / deviation).tolist(),
            "drawn": drawn.tolist(),
            "mean": w.detach().tolist(),
            "hess": group["hess"].tolist(),
            "momentum": group["momentum"].tolist(),
        }
    )

golden = {
    "examples": config["ess"],
    "hess_init": config["hess_init"],
    "weight_decay": config["weight_decay"],
    "lr": config["lr"],
    "beta1": config["beta1"],
    "beta2": config["beta2"],
    "start": start.tolist(),
    "scale": scale.tolist(),
    "steps": steps,
}
path = Path(__file__).with_name("ivon_steps.json")
path.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace(',"', ',\n"') + "\n")
print(f"{path.name}: {path.stat().st_size} bytes")
