"""The PyTorch side of the bn_noise benchmark: times one forward and backward pass for every line it reads.

    python bn_noise.py BATCH CHANNELS SIDE THREADS

First it prints the version of PyTorch and the names of its variants, separated by tabs. Then, for each line of
input, it prints the seconds that each variant took. The benchmark sends a line between its own measurements, so
that both sides see the same machine.
"""

import sys
import time

import torch
import torch.nn.functional as F

batch, channels, side, threads = (int(argument) for argument in sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(0)
# One thread is measured in processor time, which other programs on the machine disturb less.
clock = time.process_time if threads == 1 else time.perf_counter


class Variant:
    def __init__(self, name, memory_format, learnable):
        self.name = name
        self.memory_format = memory_format
        shape = (batch, channels, side, side)
        self.u = torch.randn(shape).to(memory_format=memory_format).requires_grad_()
        self.dy = torch.randn(shape).to(memory_format=memory_format)
        self.sigma = torch.tensor(0.1, requires_grad=True) if learnable else 0.1

    def noise(self):
        if self.memory_format == torch.contiguous_format:
            return torch.randn_like(self.u)
        # Drawing in the order of memory is several times faster.
        return torch.randn(batch, side, side, channels).permute(0, 3, 1, 2)

    def step(self):
        self.u.grad = None
        start = clock()
        xhat = F.batch_norm(self.u, None, None, training=True, eps=1e-5)
        y = F.relu(xhat + self.sigma * self.noise())
        y.backward(self.dy)
        return clock() - start


variants = [
    Variant("PyTorch, NCHW", torch.contiguous_format, learnable=True),
    Variant("PyTorch, channels last", torch.channels_last, learnable=True),
    Variant("PyTorch, NCHW, constant sigma", torch.contiguous_format, learnable=False),
]
print("\t".join([torch.__version__] + [variant.name for variant in variants]), flush=True)
for _ in sys.stdin:
    print("\t".join(str(variant.step()) for variant in variants), flush=True)
