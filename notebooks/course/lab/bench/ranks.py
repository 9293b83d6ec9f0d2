"""Time ranks: all-reduce and DDP by hand beside torch's, two ranks beside one alone.

Both sides live in the same processes. On the CPU, through gloo, with one thread a
rank: two ranks want two cores of their own.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.bench.turns import turns_of_ranks
from manual_dp.models.lenet import LeNet
from manual_dp.ranks import DDP, ring_allreduce


def ring(world_size, mib, setup):
    """Return the row: the ring on isend and irecv, and `dist.all_reduce`."""
    numbers = max(1, setup.numbers * mib // 64)
    return (f"{world_size} x {4 * numbers / 2**20:.3g} MiB: ring / dist.all_reduce",
            partial(turns_of_ranks, world_size, _ring_rank, [numbers]))


def _ring_rank(numbers):
    tensor = torch.zeros(numbers)
    return lambda: ring_allreduce(tensor), lambda: dist.all_reduce(tensor)


def ddp(make, name, shape, share, setup):
    """Return the row: a step of `make()` through our DDP, and through torch's."""
    rows = max(1, setup.batch_size // share)
    return (f"{name}, {rows} a rank: DDP / torch's",
            partial(turns_of_ranks, 2, _ddp_rank, [make, (rows, *shape)]))


def _ddp_rank(make, shape):
    return (_step(DDP(make()), shape), _step(DistributedDataParallel(make()), shape))


def weak(wrap, name, setup):
    """Return the row: rank 0 steps alone, and both step, wrapped by `wrap`."""
    rows = max(1, setup.batch_size // 2)
    return (f"LeNet, {rows} a rank: one / two{name}",
            partial(turns_of_ranks, 2, _weak_rank, [wrap, (rows, 1, 28, 28)]))


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
