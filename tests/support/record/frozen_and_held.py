"""Freeze what the optimizer holds: nothing is trained.

Source: PyTorch forum 84911, "Obtaining abnormal changes in loss and accuracy": all
layers but batch norm are frozen, and the optimizer holds the last layer only, which is
among them. Batch norm's running means go on, so the loss is not quite constant.

It is no bug of many devices: one has it, too.
"""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, network, update


def made(frozen):
    model = network()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    for layer in frozen:
        model[layer].requires_grad_(False)
    return DDP(model), optimizer


def all_but_norm():
    return made([0, 3])


def all_but_last():
    return made([0, 1])


def broken():
    return arguments(all_but_norm, update)


def right():
    return arguments(all_but_last, update)
