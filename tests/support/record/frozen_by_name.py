"""Freeze layers by a name that never matches: DDP's names begin with `module.`.

Source: PyTorch forum 84911: layers that were to be frozen by their names are trained,
because the test of the name is never true.

As many programs do, this one wraps the model only where there are several ranks. So one
device freezes the layer and many train it.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, network, update


def freeze(model):
    for name, p in model.named_parameters():
        if name.startswith("0."):
            p.requires_grad_(False)


def wrap(model):
    return DDP(model) if dist.get_world_size() > 1 else model


def frozen_after():
    model = wrap(network())
    freeze(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def frozen_before():
    model = network()
    freeze(model)
    model = wrap(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def broken():
    return arguments(frozen_after, update)


def right():
    return arguments(frozen_before, update)
