"""The programs of exercise 7.1: one step on many devices, right or with a bug.

    RIGHT, BUGS   the functions; the first line of each says what it does

Each is `train_batch(X, y, device_params, devices, lr)` as in lesson 05. An answer gets
one by one, without its name and its docstring.
"""

import torch

from manual_dp.school.ps7.given import (
    backward,
    clear,
    copy_params,
    cut,
    descend,
    loss,
    sum_gradients,
)


def sums(X, y, device_params, devices, lr):
    """Sum over shards, and divide by all rows."""
    backward(device_params, X, y)
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(X))


def weighed(X, y, device_params, devices, lr):
    """Average the shards' means, each weighed by its rows."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        mean = loss(params, X_shard, y_shard).sum() / max(1, len(y_shard))
        (mean * len(y_shard) / len(y)).backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr)


def every_kth(X, y, device_params, devices, lr):
    """Deal the rows out like cards."""
    k = len(devices)
    for rank, params in enumerate(device_params):
        clear(params)
        loss(params, X[rank::k], y[rank::k]).sum().backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(X))


def row_by_row(X, y, device_params, devices, lr):
    """Go back through one row at a time."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        for p in params:
            p.grad = torch.zeros_like(p)
        for i in range(len(y_shard)):
            (loss(params, X_shard[i:i + 1], y_shard[i:i + 1]).sum() / len(y)).backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr)


def backwards_in_order(X, y, device_params, devices, lr):
    """Add up from the last rank to the first."""
    total = [torch.zeros_like(p) for p in device_params[0]]
    for params, X_shard, y_shard in reversed(list(zip(
            device_params, cut(X, len(devices)), cut(y, len(devices))))):
        grads = torch.autograd.grad(loss(params, X_shard, y_shard).sum(), params)
        total = [t + grad for t, grad in zip(total, grads)]
    for params in device_params:
        for p, t in zip(params, total):
            p.grad = t / len(X)
        descend(params, lr)


def in_one_bucket(X, y, device_params, devices, lr):
    """Pack the gradients into one tensor before they are summed."""
    buckets = []
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        grads = torch.autograd.grad(loss(params, X_shard, y_shard).sum(), params)
        buckets.append(torch.cat([grad.flatten() for grad in grads]))
    total = torch.stack(buckets).sum(0) / len(X)
    for params in device_params:
        parts = total.split([p.numel() for p in params])
        for p, part in zip(params, parts):
            p.data.sub_(lr * part.view_as(p))


def first_device_then_copies(X, y, device_params, devices, lr):
    """Step on the first device, and copy its weights to the others."""
    first = device_params[0]
    clear(first)
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        own = copy_params(params)
        loss(own, X_shard, y_shard).sum().backward()
        for p, q in zip(first, own):
            p.grad = q.grad if p.grad is None else p.grad + q.grad
    descend(first, lr / len(X))
    for params in device_params[1:]:
        for p, q in zip(params, first):
            p.data.copy_(q.data)


def mean_of_means(X, y, device_params, devices, lr):
    """Average the shards' means, whatever their sizes."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        (loss(params, X_shard, y_shard).sum() / max(1, len(y_shard))).backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(devices))


def sum_for_mean(X, y, device_params, devices, lr):
    """Add up the shards' means, and never divide by the devices."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        (loss(params, X_shard, y_shard).sum() / max(1, len(y_shard))).backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr)


def own_gradient(X, y, device_params, devices, lr):
    """Let every replica step with the gradient of its own shard."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()
        descend(params, lr / max(1, len(y_shard)))


def sum_on_rank_0(X, y, device_params, devices, lr):
    """Give the sum to replica 0 alone; the others keep their own."""
    backward(device_params, X, y)
    for same in zip(*device_params):
        same[0].grad = sum(p.grad for p in same)
    for params in device_params:
        descend(params, lr / len(X))


def never_cleared(X, y, device_params, devices, lr):
    """Keep the gradients of the steps before."""
    old = [[p.grad for p in params] for params in device_params]
    backward(device_params, X, y)
    sum_gradients(device_params)
    for params, before in zip(device_params, old):
        for p, grad in zip(params, before):
            p.grad = p.grad if grad is None else p.grad + grad
        descend(params, lr / len(X))


def last_rows_dropped(X, y, device_params, devices, lr):
    """Leave out the rows that do not divide evenly."""
    rows = max(1, len(X) // len(devices) * len(devices))
    for params, X_shard, y_shard in zip(device_params, cut(X[:rows], len(devices)),
                                        cut(y[:rows], len(devices))):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / rows)


def last_parameter_forgotten(X, y, device_params, devices, lr):
    """Never move the last parameter."""
    backward(device_params, X, y)
    sum_gradients(device_params)
    for params in device_params:
        descend(params[:-1], lr / len(X))
