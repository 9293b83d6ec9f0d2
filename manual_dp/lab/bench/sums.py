"""Time all-reduce: in this process, and over processes beside torch's."""

from functools import partial

import torch
import torch.distributed as dist

from manual_dp.allreduce import allreduce
from manual_dp.lab import book
from manual_dp.lab.bench.steps import replicas
from manual_dp.lab.bench.turns import seconds, turns_of_ranks
from manual_dp.params import pack_grads
from manual_dp.ranks import ring_allreduce


def lenet_grads(setup):
    """Return the row: gradients packed into one tensor, and one by one as in the book.

    Four ranks.
    """
    device_params = replicas([setup.device] * 4)
    packed = [pack_grads(params) for params in device_params]
    apart = [[torch.zeros_like(p) for p in ranks] for ranks in zip(*device_params)]
    return ("packed / the book's, 8 parameters",
            partial(seconds, lambda: allreduce(packed)),
            partial(seconds, lambda: [book.allreduce(tensors) for tensors in apart]))


def big(function, setup):
    """Return the row: `function` of four tensors, and a copy of all four."""
    tensors = [torch.zeros(setup.numbers, device=setup.device) for _ in range(4)]
    copies = [tensor.clone() for tensor in tensors]
    return (f"4 x {4 * setup.numbers / 2**20:.3g} MiB / copying them once",
            partial(seconds, lambda: function(tensors)),
            partial(seconds, lambda: [b.copy_(a) for a, b in zip(tensors, copies)]))


def ring(world_size, mib, setup):
    """Return the row: the ring on isend and irecv, and `dist.all_reduce`."""
    numbers = max(1, setup.numbers * mib // 64)
    return (f"{world_size} x {4 * numbers / 2**20:.3g} MiB: ring / dist.all_reduce",
            partial(turns_of_ranks, world_size, _ring_rank, numbers))


def _ring_rank(numbers):
    tensor = torch.zeros(numbers)
    return lambda: ring_allreduce(tensor), lambda: dist.all_reduce(tensor)
