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

from manual_dp.checks import check_devices, check_minibatch, check_rows


def scatter(X, devices):
    """Cut the rows of `X` into `len(devices)` shards, shard r on devices[r].

    Returns a tuple. Order is kept: the shards one after another are X. A shard that
    stays on X's device is a view of X; on distinct GPUs torch's own scatter copies.
    Raises TypeError if X is not a tensor, ValueError if it has no rows.
    """
    check_rows(X)
    check_devices(devices)
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
    check_minibatch(X, y)
    return scatter(X, devices), scatter(y, devices)


def _distinct_gpus(devices):
    devices = [torch.device(device) for device in devices]
    # "cuda" without a number may be the same GPU as "cuda:0"
    numbered = all(d.type == "cuda" and d.index is not None for d in devices)
    return numbered and len(set(devices)) == len(devices)
