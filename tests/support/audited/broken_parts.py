"""Parts that the broken programs share: who am I, my rows, the mean of gradients."""

import functools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def world():
    return dist.get_rank(), dist.get_world_size()


def first():
    return dist.get_rank() == 0


def block(v):
    """Return a rank's rows: one stretch of neighbours."""
    rank, world_size = world()
    return v.tensor_split(world_size)[rank]


def every(v):
    """Return a rank's rows: each world_size-th."""
    rank, world_size = world()
    return v[rank::world_size]


def dice(t, seed=0):
    """Return the generator of step t's batch, the same on all ranks."""
    return torch.Generator().manual_seed(1000 * seed + t)


def average(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def broken(codes, base, **edits):
    """Return an entry of BROKEN; base() without the edits is right."""
    return (codes,), functools.partial(base, **edits)


def broken2(codes, base, **edits):
    """Return an entry of BROKEN that two codes name equally well."""
    return tuple(codes.split()), functools.partial(base, **edits)


def plain(model):
    return model


def wrapped(model, **options):
    return DistributedDataParallel(model, **options)
