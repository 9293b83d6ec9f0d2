"""What problem set 7 gives to learners and to the programs that they judge.

    draw_params   a small network's parameters, from a seed
    draw_batch    rows and labels, from a seed
    copy_params   parameters of one's own that want a gradient
    loss          the loss of each row
    spread        a function's verdict from all ranks, on all ranks

and the parts that programs are made of: cut, clear, backward, sum_gradients,
sum_over_ranks, descend.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F


def draw_params(seed, dtype=torch.float64):
    """Return the weights and biases of two layers: 5 numbers in, 3 classes out."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, 5), (4,), (3, 4), (3,)
    numbers = [torch.rand(shape, dtype=torch.float64, generator=generator) - 0.5
               for shape in shapes]
    return [part.to(dtype) for part in numbers]


def draw_batch(rows, seed, dtype=torch.float64):
    """Return X, shape (rows, 5), and the labels y."""
    generator = torch.Generator().manual_seed(1000 + seed)
    X = torch.rand(rows, 5, dtype=torch.float64, generator=generator).sub(0.5).mul(4)
    return X.to(dtype), torch.randint(3, (rows,), generator=generator)


def copy_params(params):
    """Return new tensors with the numbers of `params`, which want a gradient."""
    return [p.detach().clone().requires_grad_() for p in params]


def loss(params, X, y):
    """Return the loss of each row, shape (rows,)."""
    W1, b1, W2, b2 = params
    return F.cross_entropy(torch.tanh(X @ W1.T + b1) @ W2.T + b2, y, reduction="none")


def spread(same):
    """Return on every rank whether `same` is true on all of them."""
    verdict = torch.tensor(float(bool(same)))
    dist.all_reduce(verdict, dist.ReduceOp.MIN)
    return bool(verdict)


def cut(rows, k):
    """Return k shards of ceil(n / k) rows, the last ones shorter or empty."""
    size = -(-len(rows) // k)
    return [rows[rank * size:(rank + 1) * size] for rank in range(k)]


def clear(params):
    """Forget the gradients."""
    for p in params:
        p.grad = None


def backward(replicas, X, y):
    """Give every replica the gradient of the summed loss of its shard."""
    k = len(replicas)
    for params, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()


def sum_gradients(replicas):
    """Give every replica the sum of all replicas' gradients."""
    for same in zip(*replicas):
        total = sum(p.grad for p in same)
        for p in same:
            p.grad = total.clone()


def sum_over_ranks(params):
    """Replace the gradients by their sums over ranks, in one message."""
    bucket = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(bucket)
    for p, part in zip(params, bucket.split([p.numel() for p in params])):
        p.grad = part.view_as(p)


@torch.no_grad()
def descend(params, rate):
    """Move down the gradient, in place."""
    for p in params:
        p -= rate * p.grad
