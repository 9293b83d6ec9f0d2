"""The rows of `python -m manual_dp bench` that need a process for each rank.

    row               what is timed                       divided by              aim
    launch-2, -4, -8  run_ranks of a function that does   one second    0.3, 0.6, 1.2
                      nothing, on 2, 4, 8 ranks
    launch-first      a new Python's first run_ranks      one second                3
    ring-W-M          ring_allreduce of M MiB on W ranks  dist.all_reduce         1.0
    ddp-lenet         a step through DDP by hand          through torch's DDP    1.05
    ddp-resnet18      the same, of 11 million weights     through torch's DDP    1.05
    weak-scaling      a step of one rank, alone           of two ranks, DDP       0.9
    weak-machine      the same, alone                     of two that send nothing

So a launch's figures are seconds, and weak-... are efficiencies: two ranks work on
twice the rows of one. The higher, the better; of all others the lower. weak-machine is
what the cores and their memory allow, and no DDP can do better.

Everything but the launches takes turns inside one launch of ranks, both models alive in
the same processes; a turn starts for all at once and lasts until the last is done. On
the CPU, through gloo, with one thread a rank: two ranks want two cores of their own.
"""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.models.lenet import LeNet
from manual_dp.models.resnet import resnet18
from manual_dp.ranks import DDP, ring_allreduce, run_ranks

TIMEOUT = 900  # seconds for all the turns of a row


def _launch(world_size, setup):
    def seconds():
        begin = time.perf_counter()
        run_ranks(int, world_size)  # int() is 0
        return time.perf_counter() - begin
    return f"run_ranks on {world_size} ranks, in seconds", seconds, lambda: 1.0


def _first(setup):
    code = ("import time; from manual_dp.ranks import run_ranks; t = time.time(); "
            "run_ranks(int, 2); print(time.time() - t)")

    def seconds():
        return float(subprocess.check_output([sys.executable, "-c", code],
                                             cwd=Path(__file__).parents[3]))
    return "the first run_ranks, in seconds", seconds, lambda: 1.0


def _ring(world_size, mib, setup):
    numbers = max(1, setup.numbers * mib // 64)
    return (f"{world_size} x {4 * numbers / 2**20:.3g} MiB: ring / dist.all_reduce",
            partial(_turns, world_size, _ring_rank, numbers))


def _ring_rank(numbers):
    tensor = torch.zeros(numbers)
    return lambda: ring_allreduce(tensor), lambda: dist.all_reduce(tensor)


def _ddp(make, name, shape, share, setup):
    rows = max(1, setup.batch_size // share)
    return (f"{name}, {rows} a rank: DDP / torch's",
            partial(_turns, 2, _ddp_rank, make, (rows, *shape)))


def _ddp_rank(make, shape):
    return (_step(DDP(make()), shape), _step(DistributedDataParallel(make()), shape))


def _weak(wrap, name, setup):
    rows = max(1, setup.batch_size // 2)
    return (f"LeNet, {rows} a rank: one / two{name}",
            partial(_turns, 2, _weak_rank, wrap, (rows, 1, 28, 28)))


def _weak_rank(wrap, shape):
    alone, together = _step(LeNet(), shape), _step(wrap(LeNet()), shape)
    return (alone if dist.get_rank() == 0 else lambda: None), together


def _step(net, shape):
    """Return a function that takes a step on one minibatch, again and again."""
    X, y = torch.rand(shape), torch.randint(10, shape[:1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        optimizer.step()
    return step


def _turns(world_size, make, *args):
    """Time both sides that `make(*args)` returns in each rank; the last argument of all
    says how often. Return a pair of seconds for each turn: the slowest rank's.
    """
    *args, turns = args
    ranks = run_ranks(_rank, world_size, make, args, turns, timeout=TIMEOUT)
    return [[max(seconds) for seconds in zip(*pairs)] for pairs in zip(*ranks)]


def _rank(make, args, turns):
    sides, pairs = make(*args), []
    for turn in range(turns):
        seconds = [0.0, 0.0]
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            dist.barrier()
            begin = time.perf_counter()
            sides[side]()
            seconds[side] = time.perf_counter() - begin
        pairs.append(seconds)
    return pairs


ROWS = {  # as bench.ROWS; one side that takes the number of turns makes all the pairs
    **{f"launch-{n}": (partial(_launch, n), 1, aim)
       for n, aim in ((2, 0.3), (4, 0.6), (8, 1.2))},
    "launch-first": (_first, 0.2, 3),
    **{f"ring-{n}-{mib}": (partial(_ring, n, mib), 4 if mib < 16 else 1, 1.0)
       for n in (2, 4) for mib in (1, 4, 16, 64)},
    "ddp-lenet": (partial(_ddp, LeNet, "LeNet", (1, 28, 28), 2), 4, 1.05),
    "ddp-resnet18": (partial(_ddp, resnet18, "ResNet-18", (3, 32, 32), 32), 1, 1.05),
    "weak-scaling": (partial(_weak, DDP, " DDP"), 4, 0.9),
    "weak-machine": (partial(_weak, nn.Sequential, ""), 4, None),
}
