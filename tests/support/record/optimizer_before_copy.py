"""Make the optimizer before the model's parameters are replaced: it updates nothing.

Source: accelerate 2665: an optimizer made before the model is prepared for many devices
holds parameters that the model no longer has.
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
