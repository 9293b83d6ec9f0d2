"""Call the model bare in one step and wrapped in the next: half are not synchronised.

Source: a report of 2024 on X (x-jxmnop-ddp-out-of-sync in TrainCheck's set): a trainer
keeps the bare module and sometimes calls that, sometimes a DDP around it; the loss falls
until step 150 or so, and then rises. TrainCheck's program wraps in every second step.

A bare step applies each rank's own gradient. A new wrapper then sends rank 0's weights
to all: what the other ranks have learned in between is lost.
"""

from itertools import count

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, network, own, update, wrapped


def bare():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), count()


def predict(model, steps, X):
    if next(steps) % 2 == 0:
        return model(X)
    return DDP(model)(X)


def step(model, optimizer, steps, X, y):
    X, y = own(X, y)
    optimizer.zero_grad()
    F.cross_entropy(predict(model, steps, X), y).backward()
    optimizer.step()


def broken():
    return arguments(bare, step)


def right():
    return arguments(wrapped, update)
