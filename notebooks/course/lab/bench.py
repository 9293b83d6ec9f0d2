"""Time what the course claims, as ratios: `python -m course bench`.

    row               what is timed                      divided by               aim
    step-2, -8        train_batch on 2, 8 replicas       a plain step      1.07, 1.25
    book-2            train_batch on 2 replicas          the book's step          1.0
    packed            one all-reduce of LeNet's flat     eight, one for each      0.5
                      gradients, on 4 replicas           parameter, as the book
    star, ring        all-reduce of 4 x 64 MiB           copying them once        1.2
    import            import manual_dp, a new process    import torch            1.05
    launch-2          run_ranks of what does nothing     one second               0.3
    ring-1M ... -64M  ring_allreduce, so many MiB on     dist.all_reduce          1.0
                      each of 2 ranks
    ddp               a step through DDP by hand         through torch's DDP     1.05

The lower, the better. Both sides take turns after a round that is dropped, and each
pair gives a ratio. Read the median; min and max say how far to trust it. All is
float32, on torch's own choice of threads, ranks on one each: two want two cores.
"""

import math
import subprocess
import sys
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab import d2l_code
from course.lab.stopwatch import seconds, time_turns, time_turns_on_ranks
from manual_dp.allreduce import allreduce, ring_allreduce
from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet
from manual_dp.models.lenet import LeNet
from manual_dp.params import get_params
from manual_dp.ranks import DDP, run_ranks
from manual_dp.ranks import ring_allreduce as ring_of_ranks
from manual_dp.train import sgd, train_batch

# (aim, make): make(rows of a minibatch, numbers of a tensor) returns both sides. For a
# row over ranks it returns what makes both sides in each rank, and a list of arguments
ROWS = {
    "step-2": (1.07, lambda rows, numbers: _step(2, rows)),
    "step-8": (1.25, lambda rows, numbers: _step(8, rows)),
    "book-2": (1.0, lambda rows, numbers: _book(rows)),
    "packed": (0.5, lambda rows, numbers: _packed()),
    "star": (1.2, lambda rows, numbers: _big(allreduce, numbers)),
    "ring": (1.2, lambda rows, numbers: _big(ring_allreduce, numbers)),
    "import": (1.05, lambda rows, numbers: (_import("manual_dp"), _import("torch"))),
    "launch-2": (
        0.3,
        lambda rows, numbers: (
            partial(seconds, lambda: run_ranks(int, 2)),
            lambda: 1.0,
        ),
    ),
    "ring-1M": (1.0, lambda rows, numbers: (_ring, [numbers // 64])),
    "ring-4M": (1.0, lambda rows, numbers: (_ring, [numbers // 16])),
    "ring-16M": (1.0, lambda rows, numbers: (_ring, [numbers // 4])),
    "ring-64M": (1.0, lambda rows, numbers: (_ring, [numbers])),
    "ddp": (1.05, lambda rows, numbers: (_ddp, [rows // 2])),
}


def bench(only=None, repeat=15, rows=256, numbers=2**24):
    """Time the rows, print each as a line of a table, and return all as a dict.

    only: names of rows, by default all. repeat: pairs that are timed. rows: images of
    a minibatch. numbers: in each of four large tensors.
    """
    unknown = [name for name in only or () if name not in ROWS]
    if unknown:
        raise ValueError(f"no row is called {unknown[0]!r}; rows: {', '.join(ROWS)}")
    found = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": {}}
    print(f"{'row':16} median    min    max  aim")
    for name in only or ROWS:
        aim, make = ROWS[name]
        first, second = make(rows, numbers)
        if callable(second):
            pairs = time_turns([first, second], repeat + 1, name)
        else:
            pairs = time_turns_on_ranks(2, first, second, repeat + 1)
        ratios = [ours / theirs for ours, theirs in pairs[1:]]
        row = {"median": median(ratios), "min": min(ratios), "max": max(ratios)}
        print(
            f"{name:16}",
            *(f"{figure:6.3f}" for figure in row.values()),
            f"{aim:4}",
            flush=True,
        )
        found["rows"][name] = {**row, "aim": aim, "seconds": pairs[1:]}
    return found


def _step(world_size, rows):
    [device] = try_devices(1)
    X = torch.rand(rows, 1, 28, 28, device=device)
    y = (torch.arange(rows) % 10).to(device)
    start = init_params("he", torch.Generator().manual_seed(0))
    devices, params = [device] * world_size, get_params(start, device)
    device_params = [get_params(start, device) for _ in devices]

    def plain_step():
        F.cross_entropy(lenet(X, params), y, reduction="sum").backward()
        sgd(params, 0.05, rows)

    return (
        partial(seconds, lambda: train_batch(X, y, device_params, devices, 0.05)),
        partial(seconds, plain_step),
    )


def _book(rows):
    X, y = torch.rand(rows, 1, 28, 28), torch.arange(rows) % 10
    start = init_params("he", torch.Generator().manual_seed(0))
    devices = try_devices(2)
    ours, theirs = ([get_params(start, one) for one in devices] for _ in range(2))
    return (
        partial(seconds, lambda: train_batch(X, y, ours, devices, 0.05)),
        partial(seconds, lambda: d2l_code.train_batch(X, y, theirs, devices, 0.05)),
    )


def _packed():
    shapes = [p.shape for p in init_params("he", torch.Generator())]
    flat = [torch.zeros(sum(map(math.prod, shapes))) for _ in range(4)]
    each = [[torch.zeros(shape) for _ in range(4)] for shape in shapes]
    return (
        partial(seconds, lambda: allreduce(flat)),
        partial(seconds, lambda: [d2l_code.allreduce(tensors) for tensors in each]),
    )


def _big(function, numbers):
    tensors = [torch.zeros(numbers) for _ in range(4)]
    copies = [torch.zeros(numbers) for _ in range(4)]
    return (
        partial(seconds, lambda: function(tensors)),
        partial(seconds, lambda: [b.copy_(a) for a, b in zip(tensors, copies)]),
    )


def _import(name):
    code = f"import time; t = time.time(); import {name}; print(time.time() - t)"
    return lambda: float(subprocess.check_output([sys.executable, "-c", code]))


def _ring(numbers):
    tensor = torch.zeros(numbers)
    return lambda: ring_of_ranks(tensor), lambda: dist.all_reduce(tensor)


def _ddp(rows):
    return _train(DDP(LeNet()), rows), _train(DistributedDataParallel(LeNet()), rows)


def _train(net, rows):
    X, y = torch.rand(rows, 1, 28, 28), torch.arange(rows) % 10
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        optimizer.step()

    return step
