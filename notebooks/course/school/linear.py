"""A linear model to train in an exercise: batches, gradients, steps.

    draw_layer   a weight and a bias
    draw_batch   rows and labels
    loss         of batches, each with a factor
    gradients    of that, by autograd
    optimizer    one of a kind, by name; KINDS has one for each of four cases
    descend      the parameters after each of some steps
    STEPPED      what to say if they are right with plain SGD only
"""

import torch
from torch.nn import functional as F

from course.school.draws import rand

# a right answer leaves the step to whichever it is handed
KINDS = ("SGD", "SGD", "Adam", "SGD with momentum")
STEPPED = {"the step is the optimizer's, whichever it is: see that p.grad holds the "
           "gradient of the mean, then call optimizer.step() once, and leave its rate "
           "alone": True}


def draw_layer(random, inputs=3, outputs=4):
    """Draw a weight and a bias."""
    return [rand(random, outputs, inputs), rand(random, outputs)]


def draw_batch(random, rows, classes=4):
    """Draw rows of three numbers each, and their labels."""
    return rand(random, rows, 3), torch.tensor(
        random.choices(range(classes), k=rows), dtype=torch.int64)


def loss(params, batches, factors=None):
    """Return the sum over batches of a factor times the losses of all rows.

    params: a weight, or weight and bias for each layer; between layers stands tanh.
    factors: if there are none, the mean of the batches' mean losses is returned.
    """
    factors = factors or [1 / len(batches) / len(y) for _, y in batches]
    total = 0
    for (X, y), factor in zip(batches, factors, strict=True):
        h = X
        for i in range(0, len(params), 2):
            h = F.linear(h.tanh() if i else h, *params[i:i + 2])
        total += factor * F.cross_entropy(h, y, reduction="sum")
    return total


def gradients(params, batches, factors=None):
    """Return the gradient of `loss` for each of `params`, tensors or lists."""
    leaves = [torch.as_tensor(p, dtype=torch.float64).detach().requires_grad_()
              for p in params]
    return torch.autograd.grad(loss(leaves, batches, factors), leaves)


def optimizer(kind, params, lr):
    """Return a new optimizer for `params`."""
    if kind == "Adam":
        return torch.optim.Adam(params, lr=lr)
    return torch.optim.SGD(params, lr=lr, momentum=0.9 * (kind != "SGD"))


def descend(params, steps, lr, kind="SGD", factors=None):
    """Return the parameters after each of `steps`, which are lists of batches.

    kind: of the optimizer. factors(batches): those of `loss`, if they are others.
    """
    now = [p.detach().clone().requires_grad_() for p in params]
    rule, after = optimizer(kind, now, lr), []
    for batches in steps:
        for p, grad in zip(now, gradients(now, batches, factors and factors(batches))):
            p.grad = grad
        rule.step()
        after.append([p.detach().clone() for p in now])
    return after
