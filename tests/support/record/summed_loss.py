"""Sum the loss over a rank's rows under DDP, which takes the mean over the ranks.

Source: the note in the documentation of DistributedDataParallel: "the gradient will be
M times smaller when compared to the same model trained on a single node ... if the loss
is summed (NOT averaged as usual)".
"""

from torch.nn import functional as F

from tests.support.record.parts import arguments, own, update, wrapped


def step(model, optimizer, X, y):
    X, y = own(X, y)
    optimizer.zero_grad()
    F.cross_entropy(model(X), y, reduction="sum").backward()
    optimizer.step()


def lower_rate():
    return wrapped(lr=0.02)


def broken():
    return arguments(lower_rate, step)


def right():
    return arguments(lower_rate, update)
