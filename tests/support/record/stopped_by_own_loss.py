"""Stop early by a rank's own loss: one rank stops, the others wait for it.

Source: PyTorch forum, reports that early stopping hangs under DDP; the answer is to
decide by a number that all ranks share.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.support.record.parts import arguments, own, wrapped

ENOUGH = 1.05


def own_loss(loss):
    return loss


def mean_loss(loss):
    loss = loss.clone()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def step(model, optimizer, X, y, judged):
    X, y = own(X, y)
    optimizer.zero_grad()
    with torch.no_grad():
        loss = F.cross_entropy(model.module(X), y)
    if judged(loss) < ENOUGH:
        return
    F.cross_entropy(model(X), y).backward()
    optimizer.step()


def wrong_step(model, optimizer, X, y):
    step(model, optimizer, X, y, own_loss)


def right_step(model, optimizer, X, y):
    step(model, optimizer, X, y, mean_loss)


def broken():
    return arguments(wrapped, wrong_step)


def right():
    return arguments(wrapped, right_step)
