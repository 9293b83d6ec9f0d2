"""The right programs of exercise 7.2: trainings whose loss and optimizer nobody tells.

    RIGHT   the functions; the first line of each says what it does

Each is `train(params, batches, k)`: it returns the weights of all k replicas after the
minibatches. Rates are the programs' own; one is far too high.
"""

import torch
from torch.nn import functional as F

from manual_dp.school.ps7.given import (
    backward,
    clear,
    copy_params,
    cut,
    descend,
    loss,
    sum_gradients,
)


def plain(params, batches, k):
    """Train with SGD."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def with_momentum(params, batches, k):
    """Train with momentum."""
    replicas = [copy_params(params) for _ in range(k)]
    velocity = [[torch.zeros_like(p) for p in params] for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            (loss(own, X_shard, y_shard).sum() / len(X)).backward()
        sum_gradients(replicas)
        for own, speeds in zip(replicas, velocity):
            for p, v in zip(own, speeds):
                v.mul_(0.9).add_(p.grad)
                p.data.sub_(0.3 * v)
    return replicas


def with_adam(params, batches, k):
    """Train with Adam."""
    replicas = [copy_params(params) for _ in range(k)]
    first = [[torch.zeros_like(p) for p in params] for _ in range(k)]
    second = [[torch.zeros_like(p) for p in params] for _ in range(k)]
    for t, (X, y) in enumerate(batches, 1):
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            (loss(own, X_shard, y_shard).sum() / len(X)).backward()
        sum_gradients(replicas)
        for own, means, squares in zip(replicas, first, second):
            for p, m, s in zip(own, means, squares):
                m.lerp_(p.grad, 0.1)
                s.lerp_(p.grad ** 2, 0.001)
                s_hat = (s / (1 - 0.999 ** t)).sqrt()
                p.data.sub_(0.01 * m / (1 - 0.9 ** t) / (s_hat + 1e-4))
    return replicas


def in_float32(params, batches, k):
    """Train in float32, whatever it is given."""
    replicas = [copy_params([p.float() for p in params]) for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X.float(), k), cut(y, k)):
            clear(own)
            loss(own, X_shard, y_shard).sum().backward()
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def exploding(params, batches, k):
    """Train at a rate at which the loss explodes."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            W1, b1, W2, b2 = own
            error = (X_shard @ W1.T + b1) @ W2.T + b2 - y_shard[:, None]
            (error ** 2).sum().backward()
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 50 / len(X))
    return replicas


def of_sums(params, batches, k):
    """Train on the sum over rows, not the mean, dealt out like cards."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        for rank, own in enumerate(replicas):
            clear(own)
            loss(own, X[rank::k], y[rank::k]).sum().backward()
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.05)
    return replicas


def with_weight_decay(params, batches, k):
    """Train with weight decay and clip the whole gradient."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            norm = torch.cat([p.grad.flatten() for p in own]).norm() / len(X)
            for p in own:
                p.data.mul_(0.99)
            descend(own, 0.5 / len(X) / max(1.0, 10 * norm.item()))
    return replicas


def of_another_loss(params, batches, k):
    """Train on a loss that counts some classes more, divided by the sum of weights."""
    replicas = [copy_params(params) for _ in range(k)]
    weights = torch.tensor([1.0, 2.0, 5.0], dtype=params[0].dtype)
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            W1, b1, W2, b2 = own
            scores = torch.relu(X_shard @ W1.T + b1) @ W2.T + b2
            F.cross_entropy(scores, y_shard, weights, reduction="sum").backward()
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.3 / weights[y].sum().item())
    return replicas


RIGHT = [plain, with_momentum, with_adam, in_float32, exploding, of_sums,
         with_weight_decay, of_another_loss]
