"""Broken programs: which rows a rank takes of a minibatch, and how many they count."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.support.audited.broken_hand import regression
from tests.support.audited.broken_parts import (
    block,
    broken,
    broken2,
    dice,
    every,
    world,
)


def chunks(X, y):
    rank, world_size = world()
    return X.chunk(world_size)[rank], y.chunk(world_size)[rank]


def labels_of_rank0(X, y):
    mine = block(X)
    return mine, y[:len(mine)]


def labels_dealt_otherwise(X, y):
    return block(X), every(y)


def shuffled_rows(X, y):
    mine = block(X)
    order = torch.randperm(len(mine), generator=dice(dist.get_rank(), 5))
    return (mine[order] if dist.get_rank() else mine), block(y)


def head_of_the_batch(X, y):
    n = len(X) // dist.get_world_size()
    return X[:n], y[:n]


def one_row_too_many(X, y):
    rank, world_size = world()
    n = len(X) // world_size
    mine = slice(rank * n, rank * n + n + (rank + 1 < world_size))
    return X[mine], y[mine]


def whole_shards_only(X, y):
    rank, world_size = world()
    n = len(X) // world_size
    return X[rank * n:(rank + 1) * n], y[rank * n:(rank + 1) * n]


def drawn_with_replacement(X, y):
    mine, theirs = block(X), block(y)
    if dist.get_world_size() == 1:
        return mine, theirs
    picks = torch.arange(len(mine)) // 2 * 2
    return mine[picks], theirs[picks]


def huber_of_a_full_shard(model, X, y):
    return F.smooth_l1_loss(model(X), y, reduction="sum") / 2 / -(-11 // world()[1])


BROKEN = {
    "mean of 4 and 3 rows": broken("uneven-shards", regression, rows=7, fair=False),
    "mean of 5, 4 and 4 rows": broken("uneven-shards", regression, rows=13,
                                      world_size=3, fair=False),
    "chunks for fewer ranks": broken("exception", regression, rows=4, world_size=3,
                                     take=chunks),
    "labels of rank 0's rows": broken("labels", regression, take=labels_of_rank0),
    "labels dealt otherwise": broken("labels", regression,
                                     take=labels_dealt_otherwise),
    "rows shuffled, labels not": broken("labels", regression, take=shuffled_rows),
    "head of the batch": broken("rows-same", regression, take=head_of_the_batch),
    "one row too many": broken2("rows-overlap uneven-shards", regression,
                                world_size=3, fair=False, take=one_row_too_many),
    "rest of the rows dropped": broken("rows-missed", regression, rows=11, fair=False,
                                       world_size=3, take=whole_shards_only),
    "with replacement": broken2("rows-repeated rows-missed", regression,
                                take=drawn_with_replacement),
    "sum over a full shard's rows": broken("factor", regression, rows=11,
                                           loss=huber_of_a_full_shard, fair=False),
}
