"""Give all ranks all rows: an iterable data set that does not know the ranks.

Source: PyTorch's documentation of IterableDataset: each copy "must be configured
differently to avoid duplicated data"; a DistributedSampler does not work with it.

The weights come out as on one device. Only the second device has done nothing.
"""

from torch.nn import functional as F

from tests.support.record.parts import arguments, update, wrapped


def step(model, optimizer, X, y):
    optimizer.zero_grad()
    F.cross_entropy(model(X), y).backward()
    optimizer.step()


def broken():
    return arguments(wrapped, step)


def right():
    return arguments(wrapped, update)
