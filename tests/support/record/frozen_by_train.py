"""Freeze a stage in `train()`, after DDP has looked: it waits for that gradient.

Source: mmpretrain 702: fine-tuning a Swin or VGG with `frozen_stages` set fails on
several GPUs, with DDP's message that some parameters have no part in the loss. Most of
the library's models freeze their stages in `train()` only, not when they are built.

On one device nobody notices. Until `train()` is called, though, the stage is trained.
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

    def forward(self, X):
        return self.head(self.stage(X))

    def train(self, mode=True):
        self.stage.requires_grad_(False)
        return super().train(mode)


class FrozenWhenBuilt(Backbone):
    def __init__(self):
        super().__init__()
        self.train()


def made_of(network):
    torch.manual_seed(0)
    model = DDP(network())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def frozen_late():
    return made_of(Backbone)


def frozen():
    return made_of(FrozenWhenBuilt)


def step(model, optimizer, X, y):
    model.train()
    update(model, optimizer, X, y)


def broken():
    return arguments(frozen_late, step)


def right():
    return arguments(frozen, step)
