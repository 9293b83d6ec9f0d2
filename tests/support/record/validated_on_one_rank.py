"""Validate on rank 0 alone, through the DDP wrapper: it waits for ranks that train on.

Source: PyTorch forum, many reports that DDP hangs where one rank evaluates; the answer
is `model.module`. With buffers, the wrapper sends them from rank 0 in each forward.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, minibatch, network, update


class Counting(nn.Module):
    """Hold a network, and a buffer: the rows it has seen."""

    def __init__(self):
        super().__init__()
        self.network = network()
        self.register_buffer("rows", torch.tensor(0))

    def forward(self, X):
        return self.network(X)


def make_model():
    model = DDP(Counting())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def wrong_step(model, optimizer, X, y):
    update(model, optimizer, X, y)
    validate(model)


def right_step(model, optimizer, X, y):
    update(model, optimizer, X, y)
    validate(model.module)


@torch.no_grad()
def validate(model):
    if dist.get_rank() == 0:
        X, y = minibatch(99)
        return (model(X).argmax(1) == y).sum()


def broken():
    return arguments(make_model, wrong_step)


def right():
    return arguments(make_model, right_step)
