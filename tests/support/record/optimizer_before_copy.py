"""Make the optimizer before the model's parameters are replaced: it updates nothing.

Source: accelerate 2665, "FSDP Model not learning during training, loss stays constant",
and 3256, which says why: FSDP makes flat parameters of the model's, and an optimizer
that was made before holds the old ones. On one device the same program learns.
"""

import copy

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, network, update, wrapped


def prepare(model):
    return DDP(copy.deepcopy(model))  # as sharding does: other parameters, same values


def optimizer_first():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return prepare(model), optimizer


def broken():
    return arguments(optimizer_first, update)


def right():
    return arguments(wrapped, update)
