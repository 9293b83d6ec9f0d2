"""The linear model of problem set 5, as the judge works with it: plain lists.

    draw_rows    rows and labels
    gradients    the mean over microbatches of mean losses
    stepped      parameters after a step of SGD
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import random_numbers


def draw_rows(random, rows, classes=4):
    """Draw {"X", "y"}: rows of three numbers each, and labels."""
    return {"X": random_numbers(random, rows, 3),
            "y": [random.randrange(classes) for _ in range(rows)]}


def gradients(params, batches):
    """Return the gradients, as lists, of the mean of the batches' mean losses."""
    W, b = (torch.tensor(p, dtype=torch.float64).requires_grad_() for p in params)
    losses = [F.cross_entropy(torch.tensor(X, dtype=torch.float64) @ W.T + b,
                              torch.tensor(y)) for X, y in batches]
    return [g.tolist() for g in torch.autograd.grad(sum(losses) / len(losses), (W, b))]


def stepped(params, grads, lr):
    """Return the parameters, as lists, after a step against the gradients."""
    return [(torch.tensor(p, dtype=torch.float64)
             - lr * torch.tensor(g, dtype=torch.float64)).tolist()
            for p, g in zip(params, grads)]
