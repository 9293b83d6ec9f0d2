"""Freeze a stage, and let `train()` unfreeze it: DDP does not know its parameters.

Source: mmpretrain 702: stages that the settings freeze are trained after all, because
`train()` puts them back.

On one device the stage is trained though it should not be. On many, DDP has looked
before, while the stage was frozen: it never synchronises it.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.record.parts import arguments, update


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage = nn.Sequential(nn.Linear(6, 10), nn.Tanh())
        self.head = nn.Linear(10, 3)
        self.stage.requires_grad_(False)

    def forward(self, X):
        return self.head(self.stage(X))


class Unfreezing(Backbone):
    def train(self, mode=True):
        self.stage.requires_grad_(mode)
        return super().train(mode)


def made_of(network):
    torch.manual_seed(0)
    model = DDP(network())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def unfreezing():
    return made_of(Unfreezing)


def frozen():
    return made_of(Backbone)


def step(model, optimizer, X, y):
    model.train()
    update(model, optimizer, X, y)


def broken():
    return arguments(unfreezing, step)


def right():
    return arguments(frozen, step)
