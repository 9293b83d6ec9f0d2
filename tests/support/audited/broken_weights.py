"""Broken programs: a classifier whose buffers, weights or copies go ways of their own.

`classifier` (in broken_states) is right; `scaled` divides by a running size of all
ranks' inputs, and `normed` normalises by a rank's batch as DDP does: both are right.
"""

import copy
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations

from tests.support.audited.broken_parts import (
    broken,
    broken2,
    first,
    world,
    wrapped,
)
from tests.support.audited.broken_states import (
    Classifier,
    classifier,
    make_classifier,
    nothing,
)


class Scale(nn.Module):
    """Divide by a running size of the inputs, the same on all ranks."""

    def __init__(self, together=True):
        super().__init__()
        self.together = together
        self.register_buffer("size", torch.ones(5))

    def forward(self, x):
        if self.training:
            size = x.detach().abs().mean(0)
            if self.together:
                dist.all_reduce(size)
                size /= dist.get_world_size()
            self.size.lerp_(size, 0.1)
        return x / self.size


def make_scaled(together=True):
    torch.manual_seed(41)
    return Classifier(Scale(together))


def no_broadcast(model):
    return wrapped(model, broadcast_buffers=False)


class Normed(nn.Sequential):
    """Normalise by the batch: its running statistics are buffers."""

    def __init__(self):
        super().__init__(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(),
                         nn.Linear(16, 3))


def make_normed():
    torch.manual_seed(43)
    return Normed()


def scaled(net=make_scaled, wrap=wrapped, after=nothing, world_size=2):
    """Return the classifier whose inputs are divided by their running size."""
    return classifier(net=net, wrap=wrap, after=after, world_size=world_size)


def normed(wrap=wrapped, world_size=2):
    """Return a classifier with batch norm."""
    return classifier(net=make_normed, wrap=wrap, world_size=world_size)


def make_apart():
    return make_scaled(together=False)


def buffer_of_rank0(model):
    """Load the inputs' size where the file is: on rank 0."""
    if first():
        model.module.scale.size.fill_(2.0)


def renorm_on_rank0(model):
    if first():
        with torch.no_grad():
            model.module.head.weight.renorm_(2, 0, 0.3)


def by_a_zero_norm(model):
    """Divide the head by the norm of this rank's rows, which may be none."""
    rank, world_size = world()
    with torch.no_grad():
        if rank == world_size - 1 and world_size > 1:
            model.module.head.bias.div_(torch.zeros(()).to(model.module.head.bias))


def infinite_on_rank0(model):
    if first() and dist.get_world_size() > 1:
        with torch.no_grad():
            model.module.stem.weight[0, 0] = float("inf")


def noise_on_each(model):
    """Add noise to the weights, drawn by each rank for itself."""
    if dist.get_world_size() > 1:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)


# copies

def new_head(model):
    """Give the model a head for other classes, after the optimizer was made."""
    torch.manual_seed(4)
    model.head = nn.Linear(16, 3)
    return wrapped(model)


def copied(model):
    return wrapped(copy.deepcopy(model))


def weight_normed(model):
    """Replace the head's weight after the optimizer was made."""
    parametrizations.weight_norm(model.head)
    return wrapped(model)


def in_shared_memory():
    """Keep a layer in one file that all ranks map."""
    model = make_classifier()
    names = [tempfile.mktemp() if first() else None]
    dist.broadcast_object_list(names)
    weight = model.layers[0].weight
    shared = torch.from_file(names[0], shared=True, size=weight.numel(),
                             dtype=torch.get_default_dtype()).view_as(weight)
    if first():
        shared.copy_(weight.detach())
    dist.barrier()
    if first():
        os.unlink(names[0])
    model.layers[0].weight = nn.Parameter(shared)
    return model


BROKEN = {
    "size of each rank's inputs": broken2("buffers local", scaled, net=make_apart,
                                          wrap=no_broadcast),
    "running statistics of each rank": broken("buffers", normed,
                                              wrap=no_broadcast),
    "size loaded on rank 0": broken("buffers", scaled, wrap=no_broadcast,
                                    after=buffer_of_rank0),
    "head shortened on rank 0": broken("weights-changed", classifier,
                                       after=renorm_on_rank0),
    "noise of each rank": broken("weights-changed", classifier, after=noise_on_each),
    "not a number on the last rank": broken2("not-finite weights-changed", classifier,
                                             after=by_a_zero_norm),
    "infinite on rank 0": broken2("not-finite weights-changed", classifier,
                                  after=infinite_on_rank0),
    "new head after the optimizer": broken("not-in-optimizer", classifier,
                                           wrap=new_head),
    "copy after the optimizer": broken2("not-in-optimizer nothing-moved", classifier,
                                        wrap=copied),
    "weight norm after the optimizer": broken("not-in-optimizer", classifier,
                                              wrap=weight_normed, follow=nothing),
    "layer in shared memory": broken("alias", classifier, net=in_shared_memory),
}
