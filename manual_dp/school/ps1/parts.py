"""What `train_batch` is judged with, in place of the learner's own other answers.

    split_batch   shards of ceil(rows / devices) rows
    allreduce     the sum, into every tensor
    sgd           a step with the mean of summed gradients
"""

import torch


def split_batch(X, y, devices):
    """Return the shards of X and y, one a device, as two lists."""
    if len(X) != len(y):
        raise ValueError(f"{len(X)} rows, but {len(y)} labels")
    size = max(1, -(-len(X) // len(devices)))

    def deal(rows):
        parts = [*rows.split(size), *[rows[:0]] * len(devices)]
        return [part.to(device) for part, device in zip(parts, devices)]
    return deal(X), deal(y)


@torch.no_grad()
def allreduce(data):
    """Write the sum of all tensors into each of them."""
    total = sum(part.to(data[0].device) for part in data)
    for part in data:
        part.copy_(total)


@torch.no_grad()
def sgd(params, lr, batch_size):
    """Move each parameter against its gradient, and zero that."""
    for p in params:
        p.sub_(p.grad, alpha=lr / batch_size)
        p.grad.zero_()
