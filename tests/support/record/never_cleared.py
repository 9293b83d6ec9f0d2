"""Forget `zero_grad`: each step adds its gradient to those of all steps before.

Source: stackoverflow 60335387, "PyTorch MNIST example not converge": a program for one
device, whose loss does not fall with Adam at 1e-4, and seems to be right at 1e-5.

The ranks stay alike, and one device has the same mistake: no comparison shows it. What
shows it is that a step begins its backward pass with gradients left over.
"""

from torch.nn import functional as F

from tests.support.record.parts import arguments, own, update, wrapped


def step(model, optimizer, X, y):
    X, y = own(X, y)
    F.cross_entropy(model(X), y).backward()
    optimizer.step()


def broken():
    return arguments(wrapped, step)


def right():
    return arguments(wrapped, update)
