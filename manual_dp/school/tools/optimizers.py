"""Optimizers by name. A right answer leaves the step to whichever it is handed."""

import torch

KINDS = ("SGD", "SGD", "Adam", "SGD with momentum")  # of four cases, one after another


def optimizer(kind, params, lr):
    """Return a new optimizer for `params`."""
    if kind == "Adam":
        return torch.optim.Adam(params, lr=lr)
    return torch.optim.SGD(params, lr=lr, momentum=0.9 * (kind != "SGD"))
