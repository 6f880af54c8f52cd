"""Writes golden.json: what PyTorch computes for the layers, losses and optimizer of vmf-candle.

    python3 generate.py            (PyTorch 2, NumPy and safetensors)

It also writes vgg_bn.safetensors: a small network with the names of torchvision's vgg16_bn.

Everything is in double precision. The noise is generated here from its specification, independently of the Rust code.
"""
import json
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def fnv1a(text):
    h = 0x811C9DC5
    for byte in text.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def noise(shape, seed, layer, step, sample):
    out = np.empty(int(np.prod(shape)))
    for i in range(out.size):
        r = philox((i // 4, fnv1a(layer), step, sample), (seed & 0xFFFFFFFF, seed >> 32))
        a, b = (r[0], r[1]) if i % 4 < 2 else (r[2], r[3])
        radius, angle = np.sqrt(-2 * np.log(((a >> 8) + 1) / 2**24)), 2 * np.pi * (b >> 8) / 2**24
        out[i] = radius * (np.cos(angle) if i % 2 == 0 else np.sin(angle))
    return torch.tensor(out).reshape(shape)


def wave(*shape, a=1.0, b=0.0):
    """Numbers that Rust can make too."""
    i = torch.arange(int(np.prod(shape)))
    return torch.sin(a * i + b).reshape(shape)


def unit(x, w, sigma, layer, seed, step, product):
    """BN(w~ x) + sigma * noise, ReLU; gradients of a weighted sum; running statistics after one step from (0, 1)."""
    x, sigma = x.clone().requires_grad_(), torch.tensor(sigma).requires_grad_()
    w = (w / w.flatten(1).norm(dim=1).reshape(-1, *[1] * (w.dim() - 1))).requires_grad_()
    u = product(x, w)
    mean, var = torch.zeros(w.shape[0]), torch.ones(w.shape[0])
    normal = F.batch_norm(u, mean, var, training=True, momentum=0.1, eps=1e-5)
    scale = sigma.repeat_interleave(w.shape[0] // len(sigma)).reshape(1, -1, *[1] * (u.dim() - 2))
    y = F.relu(normal + scale * noise(u.shape, seed, layer, step, 0))
    (y * wave(*y.shape, a=0.7, b=0.2)).sum().backward()
    flat = lambda t: t.detach().flatten().tolist()
    return {"weight": flat(w), "y": flat(y), "dx": flat(x.grad), "dw": flat(w.grad), "dsigma": flat(sigma.grad),
            "running_mean": flat(mean), "running_var": flat(var)}


def adamw():
    w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = torch.optim.AdamW([w], lr=0.01, weight_decay=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (w**3 * torch.tensor([1.0, 0.5, -0.2])).sum().backward()
        optimizer.step()
    return w.tolist()


def cross_entropy(smoothing):
    logits = torch.tensor([[1.0, -2.0, 0.5], [1000.0, 0.0, -1000.0]], requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([2, 0]), label_smoothing=smoothing)
    loss.backward()
    return {"loss": loss.item(), "gradient": logits.grad.flatten().tolist()}


def pool(function, **options):
    x = wave(2, 3, 7, 6, a=1.3).requires_grad_()
    y = function(x, **options)
    (y * wave(*y.shape, a=0.7, b=0.2)).sum().backward()
    return {"y": y.flatten().tolist(), "dx": x.grad.flatten().tolist()}


def vgg_bn():
    """A small VGG with affine normalizations, after some training steps, and its logits."""
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.features = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU())
    model.classifier = torch.nn.Sequential(torch.nn.Linear(6, 5))
    forward = lambda x: model.classifier(model.features(x).mean((2, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(20):
        x = wave(8, 3, 8, 8, a=1.3, b=step)
        optimizer.zero_grad()
        F.cross_entropy(forward(x), torch.arange(8) % 5).backward()
        optimizer.step()
    safetensors.torch.save_file(model.state_dict(), "vgg_bn.safetensors")
    model.eval()
    return forward(wave(3, 3, 8, 8, a=1.1)).flatten().tolist()


golden = {
    "torch": torch.__version__,
    "linear": unit(wave(5, 7), wave(4, 7, a=2.1), [0.3], "linear", 42, 3, lambda x, w: x @ w.T),
    "conv": unit(wave(3, 4, 6, 5), wave(6, 2, 3, 3, a=2.1), [0.3, 0.7], "conv", (7 << 40) + 5, 9,
                 lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2)),
    "adamw": adamw(),
    "cross_entropy": cross_entropy(0.0),
    "cross_entropy_smoothed": cross_entropy(0.1),
    "max_pool": pool(F.max_pool2d, kernel_size=3, stride=2, padding=1),
    "vgg_bn_logits": vgg_bn(),
    "avg_pool": pool(F.avg_pool2d, kernel_size=3, stride=2, padding=1),
}
with open("golden.json", "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
