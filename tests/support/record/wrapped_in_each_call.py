"""Wrap the model in DDP in each call: the wrapper is gone before the backward pass.

Source: the "out of sync" report of 2024 (x-jxmnop-ddp-out-of-sync in TrainCheck's set):
a model wrapped in DDP afresh in every call; the weights of the ranks drift apart.

The wrapper's hooks go with the wrapper. What it does at its birth stays: it sends rank
0's weights to all. So after each step the ranks differ, and at the next call they are
alike again: the training is rank 0's alone.
"""

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, network, own, update, wrapped


def bare():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def predict(model, X):
    return DDP(model)(X)


def step(model, optimizer, X, y):
    X, y = own(X, y)
    optimizer.zero_grad()
    F.cross_entropy(predict(model, X), y).backward()
    optimizer.step()


def broken():
    return arguments(bare, step)


def right():
    return arguments(wrapped, update)
