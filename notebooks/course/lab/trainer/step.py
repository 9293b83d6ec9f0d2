"""One step on this rank: microbatches, mixed precision, clipping, one update.

    train_step     the step; returns the sum of the rows' losses
    make_scaler    what keeps float16's small gradients from becoming zero
"""

import contextlib
import time

import torch
from torch.nn import functional as F

from course.lab.trainer.methods import alone


def train_step(model, microbatches, rows, optimizer, scaler, max_norm=None, clock=None):
    """Take one step; return the sum of the losses of this rank's rows, a tensor.

    model: a network, or what wraps it. microbatches: pairs (X, y), one after another
    through the network; the ranks' gradients meet in the last one alone. rows: of the
    whole step, over all ranks and microbatches: every row counts 1 / rows.
    scaler: from `make_scaler`. max_norm: the gradient's largest length, measured when
    the scale is off again and the ranks' mean is there. clock: a `Clock`.
    """
    clock = clock or Clock()
    world_size, total = mean_of(model), 0.0
    last = len(microbatches) - 1
    for i, (X, y) in enumerate(microbatches):
        with alone(model) if i < last else contextlib.nullcontext():
            loss = F.cross_entropy(model(X), y, reduction="sum")
            clock.lap("forward")
            # the wrapper divides by the ranks: once too often for a sum over all rows
            scaler.scale(loss * world_size / rows).backward()
            clock.lap("backward")
        total = total + loss.detach()
    scaler.unscale_(optimizer)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    clock.lap("update")
    return total


def mean_of(model):
    """Return how many ranks' gradients the wrapper takes the mean of."""
    if hasattr(model, "no_sync"):
        return torch.distributed.get_world_size()
    return 1


def make_scaler(dtype, device):
    """Return a GradScaler: at work for float16, and for other types without effect."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


class Clock:
    """Note how many seconds each part of a step took: `laps` is a dict a step."""

    def __init__(self, device=None):
        self.cuda = device is not None and device.type == "cuda"
        self.laps, self.last = [{}], self.now()

    def now(self):
        """Return the time when all that was asked of the device is done."""
        if self.cuda:
            torch.cuda.synchronize()  # a GPU's kernels run on while Python goes on
        return time.perf_counter()

    def lap(self, name):
        """Count the time since the last lap as `name`'s."""
        now = self.now()
        self.laps[-1][name] = self.laps[-1].get(name, 0.0) + now - self.last
        self.last = now

    def next(self):
        """Begin the next step."""
        self.laps.append({})
