"""A linear model as judges work with it: rows, losses, steps. Not for answers.

    draw_layer   a weight and a bias
    draw_batch   rows and labels
    linear       a module with such a weight and bias
    loss         of batches, each with a factor
    gradients    of that, by autograd
    descend      the parameters after each step of SGD, or of another optimizer
    STEPPED      what to say if that is right with plain SGD only
"""

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.school.tools.optimizers import optimizer
from manual_dp.school.tools.plain import random_numbers, tensor

STEPPED = [("the step is the optimizer's, whichever it is: see that p.grad holds the "
            "gradient of the mean, then call optimizer.step() once, and leave its rate "
            "alone", True)]


def draw_layer(random, inputs=3, outputs=4):
    """Draw a weight and a bias."""
    return [random_numbers(random, outputs, inputs), random_numbers(random, outputs)]


def draw_batch(random, rows, classes=4):
    """Draw rows of three numbers each, and their labels."""
    return random_numbers(random, rows, 3), random.choices(range(classes), k=rows)


def linear(params):
    """Return an nn.Linear of three inputs and four outputs, with `params`."""
    model = nn.Linear(3, 4, dtype=torch.float64)
    model.load_state_dict(dict(zip(("weight", "bias"), map(tensor, params))))
    return model


def loss(params, batches, factors=None):
    """Return the sum over batches of a factor times the losses of all rows.

    params: a weight, or weight and bias for each layer; between layers stands tanh.
    factors: if there are none, the mean of the batches' mean losses is returned.
    """
    factors = factors or [1 / len(batches) / len(y) for _, y in batches]
    total = 0
    for (X, y), factor in zip(batches, factors, strict=True):
        h = tensor(X)
        for i in range(0, len(params), 2):
            h = F.linear(h.tanh() if i else h, *params[i:i + 2])
        total += factor * F.cross_entropy(h, torch.tensor(y), reduction="sum")
    return total


def gradients(params, batches, factors=None):
    """Return the gradient of `loss` for each of `params`, tensors or lists."""
    leaves = [torch.as_tensor(p, dtype=torch.float64).detach().requires_grad_()
              for p in params]
    return torch.autograd.grad(loss(leaves, batches, factors), leaves)


def descend(params, steps, lr, kind="SGD", factors=None):
    """Return the parameters after each of `steps`, which are lists of batches.

    kind: of the optimizer. factors(batches): those of `loss`, if they are others.
    """
    now = [tensor(p) if isinstance(p, list) else p.detach().clone() for p in params]
    for p in now:
        p.requires_grad_()
    rule, after = optimizer(kind, now, lr), []
    for batches in steps:
        for p, grad in zip(now, gradients(now, batches, factors and factors(batches))):
            p.grad = grad
        rule.step()
        after.append([p.detach().clone() for p in now])
    return after
