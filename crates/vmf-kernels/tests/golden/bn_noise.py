"""Golden values of bn_noise, from PyTorch's batch_norm and autograd in double precision.

    python bn_noise.py > bn_noise.json        (torch 2.15.0, numpy 2.4.6)

The noise is an independent implementation of the specification in src/noise/mod.rs, with the integers of
Python and numpy. Numbers are printed with 17 digits, which identify a double.
"""

import json
import math

import numpy as np
import torch

MASK = 0xFFFFFFFF


def philox4x32_10(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def normal(seed, stream, step, sample, element):
    words = philox4x32_10((element // 4, stream, step, sample), (seed & MASK, seed >> 32))
    pair = words[:2] if element % 4 < 2 else words[2:]
    u1 = ((pair[0] >> 8) + 1) / 2.0**24
    u2 = (pair[1] >> 8) / 2.0**24
    turn = math.cos if element % 2 == 0 else math.sin
    return math.sqrt(-2.0 * math.log(u1)) * turn(2.0 * math.pi * u2)


def case(shape, groups, relu, key, elements_per_sample=None, scale=1.0, offset=0.0):
    n, c, s = shape
    count = n * c * s
    rng = np.random.default_rng(count + groups)
    u = torch.tensor(scale * rng.standard_normal(shape) + offset, requires_grad=True)
    dy = torch.tensor(rng.standard_normal(shape))
    sigma = torch.tensor(rng.uniform(0.2, 1.5, groups), requires_grad=True)
    per_sample = elements_per_sample or count
    z = [
        normal(key["seed"], key["stream"], key["step"], (key["sample"] + i // per_sample) & MASK, i % per_sample)
        for i in range(count)
    ]
    z = torch.tensor(z, dtype=torch.float64).reshape(shape)
    running_mean, running_var = torch.zeros(c, dtype=torch.float64), torch.ones(c, dtype=torch.float64)
    xhat = torch.nn.functional.batch_norm(u, running_mean, running_var, training=True, momentum=0.1, eps=1e-5)
    y = xhat + sigma.repeat_interleave(c // groups).reshape(1, c, 1) * z
    if relu:
        y = torch.relu(y)
    y.backward(dy)
    train = {"y": y, "du": u.grad.clone(), "dsigma": sigma.grad.clone()}

    u.grad, sigma.grad = None, None
    xhat = torch.nn.functional.batch_norm(u, running_mean, running_var, training=False, eps=1e-5)
    y = xhat + sigma.repeat_interleave(c // groups).reshape(1, c, 1) * z
    if relu:
        y = torch.relu(y)
    y.backward(dy)
    evaluation = {"y": y, "du": u.grad, "dsigma": sigma.grad}

    flat = lambda tensor: tensor.detach().reshape(-1).tolist()
    return {
        "shape": shape,
        "relu": relu,
        "key": key,
        "elements_per_sample": elements_per_sample,
        "sigma": flat(sigma),
        "u": flat(u),
        "dy": flat(dy),
        "z": flat(z),
        "running_mean": flat(running_mean),
        "running_var": flat(running_var),
        "train": {name: flat(value) for name, value in train.items()},
        "eval": {name: flat(value) for name, value in evaluation.items()},
    }


def main():
    key = {"seed": 0x0123456789ABCDEF, "stream": 7, "step": 1000, "sample": 3}
    last = {"seed": 2**64 - 1, "stream": MASK, "step": MASK, "sample": MASK}
    cases = [
        case((3, 4, 8), 1, True, key),
        case((3, 4, 8), 2, False, key),
        case((2, 6, 9), 3, True, key),
        case((4, 3, 4), 1, True, key, elements_per_sample=24),
        case((4, 5, 1), 5, True, last, elements_per_sample=5),
        case((1, 3, 7), 1, False, last),
        case((2, 3, 12), 1, True, key, scale=1e-2, offset=1e2),
    ]
    print(json.dumps(cases, indent=None, separators=(",", ":")).replace("},{", "},\n{"))


main()
