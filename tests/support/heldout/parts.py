"""Give the held-out programs their data, and the few lines that most of them write."""

import torch
import torch.distributed as dist
from torch import nn


def draw(t, *shape, seed=0):
    """Return step t's numbers of one kind: the same on all ranks."""
    generator = torch.Generator().manual_seed(7919 * seed + t + 1)
    return torch.randn(*shape, generator=generator)


def draw_ids(t, high, *shape, seed=0):
    """Return step t's whole numbers below `high`: the same on all ranks."""
    generator = torch.Generator().manual_seed(104729 * (seed + 1) + t)
    return torch.randint(0, high, shape, generator=generator)


def mine(rows):
    """Return this rank's consecutive rows of a tensor or list."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if isinstance(rows, list):
        return rows[len(rows) * rank // world:len(rows) * (rank + 1) // world]
    return rows.tensor_split(world)[rank]


def average(parameters):
    """Replace each gradient by its mean over the ranks."""
    for p in parameters:
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def add_up(value):
    """Return the sum of a number or tensor over the ranks, without its graph."""
    total = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
    dist.all_reduce(total)
    return total


class AddUp(torch.autograd.Function):
    """Add a tensor over the ranks; its gradient is added over the ranks too."""

    @staticmethod
    def forward(ctx, value):
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Gather(torch.autograd.Function):
    """Stack all ranks' rows; a rank gets the sum of its rows' gradients."""

    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return mine(grad)


def gather(rows):
    """Return all ranks' rows, without their graph."""
    return Gather.apply(rows.detach())


def mlp(*sizes, seed=0):
    """Return a small network with tanh between its layers."""
    torch.manual_seed(seed)
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def regression(t):
    """Return rows and what is to be said of them."""
    X = draw(t, 12, 5)
    return X, torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin() + X[:, 3]], 1)


def picked(t):
    """Return rows and their classes."""
    return draw(t, 12, 5), draw_ids(t, 3, 12)
