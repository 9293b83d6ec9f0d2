"""Split a minibatch over devices: one shard of rows for each rank.

    scatter         the rows of one tensor. d2l.ai 12.5.5
    split_batch     images and their labels, alike

n rows over k devices are cut as `nn.parallel.scatter` cuts them, into shards of
ceil(n / k) rows, the last ones shorter: 10 over 4 is 3, 3, 3, 1. Where torch then
returns fewer shards than devices (5 over 4 is 2, 2, 1), these return an empty one
for every device that is left: 2, 2, 1, 0. Rank r always finds its shard at [r].
"""

import torch
from torch import nn

from manual_dp.devices import check_devices


def scatter(X, devices):
    """Cut the rows of `X` into `len(devices)` shards, shard r on devices[r].

    Returns a tuple. Order is kept: the shards one after another are X. A shard that
    stays on X's device is a view of X; on distinct GPUs torch's own scatter copies.
    Raises TypeError if X is not a tensor, ValueError if it has no rows.
    """
    _check(X, devices)
    if _distinct_gpus(devices):
        shards = nn.parallel.scatter(X, devices)
    else:
        rows = -(-len(X) // len(devices))  # ceil
        shards = [shard.to(device) for shard, device in zip(X.split(rows), devices)]
    empty = [X[:0].to(device) for device in devices[len(shards) :]]
    return (*shards, *empty)


def split_batch(X, y, devices):
    """Split images and labels over devices: (X_shards, y_shards), as `scatter` does.

    Raises ValueError if X and y differ in length, or have none.
    """
    for name, tensor in (("X", X), ("y", y)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X has {len(X)} rows but y has {len(y)}")
    return scatter(X, devices), scatter(y, devices)


def _distinct_gpus(devices):
    devices = [torch.device(device) for device in devices]
    return all(d.type == "cuda" and d.index is not None for d in devices) and len(
        set(devices)
    ) == len(devices)


def _check(X, devices):
    if not isinstance(X, torch.Tensor):
        raise TypeError(f"X must be a tensor, got {type(X).__name__}")
    check_devices(devices)
    if X.dim() == 0 or len(X) == 0:
        raise ValueError(f"X must have at least one row, got shape {tuple(X.shape)}")
