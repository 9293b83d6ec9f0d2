"""Cut a rank's rows into micro-batches, of which one rank gets one more.

Source: PyTorch tutorial "Distributed Training with Uneven Inputs Using the Join Context
Manager": the ranks with fewer inputs finish, the others wait for them without end.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.support.record.parts import arguments, own, wrapped


def nine(t):
    generator = torch.Generator().manual_seed(t)
    X = torch.rand(9, 6, generator=generator)
    return X, torch.randint(3, (9,), generator=generator)


def step(model, optimizer, X, y, cut):
    rows, (X, y) = len(X), own(X, y)
    optimizer.zero_grad()
    for X_part, y_part in zip(cut(X), cut(y)):
        loss = F.cross_entropy(model(X_part), y_part, reduction="sum")
        (loss * dist.get_world_size() / rows).backward()
    optimizer.step()


def wrong_step(model, optimizer, X, y):
    step(model, optimizer, X, y, lambda rows: rows.split(2))  # 5 rows: 3, 4 rows: 2


def right_step(model, optimizer, X, y):
    step(model, optimizer, X, y, lambda rows: rows.tensor_split(2))


def broken():
    return arguments(wrapped, wrong_step, nine)


def right():
    return arguments(wrapped, right_step, nine)
