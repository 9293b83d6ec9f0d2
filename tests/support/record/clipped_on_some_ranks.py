"""Clip the gradients on a part of the ranks: weights that all share drift apart.

Source: DeepSpeed, repaired in pull request 1801; met in the training of BLOOM-176B,
where nobody saw it for ten days. One list of gradients served two purposes: what goes
into the norm, where each weight counts once, and what is clipped. So weights that all
tensor-parallel ranks hold (layer norms) were clipped on rank 0 only.

Here the ranks are replicas, so that all ranks hold all weights: the same slip, smaller.
"""

import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from tests.support.record.parts import arguments, average_gradients, network, own


def make_model():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def step(model, optimizer, X, y, clips=lambda rank: True):
    X, y = own(X, y)
    optimizer.zero_grad()
    F.cross_entropy(model(X), y).backward()
    average_gradients(model)
    if clips(torch.distributed.get_rank()):
        clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def step_of_first(model, optimizer, X, y):
    step(model, optimizer, X, y, clips=lambda rank: rank == 0)


def step_of_all(model, optimizer, X, y):
    step(model, optimizer, X, y)


def broken():
    return arguments(make_model, step_of_first)


def right():
    return arguments(make_model, step_of_all)
