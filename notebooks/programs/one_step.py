"""One step of ResNet-50 on two ranks, beside the same step on one device.

    distances   how far the step takes one device, and how far from there the ranks

Batch norm decides what "the same step" means:

    eval     fixed statistics: an image's scores depend on that image alone
    train    statistics of the rows at hand: each rank has its own
    shards   the ranks as in train; one device forwards the same shards, one by one
    sync     statistics of all ranks' rows, by SyncNorm; one device as in train
"""

import copy

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.same import apart, most
from manual_dp.models.stems import build
from manual_dp.models.syncnorm import synchronise
from manual_dp.ranks import DDP, run_ranks

NORMS = ("eval", "train", "shards", "sync")
WRAPS = {"ddp": DistributedDataParallel, "ddp-by-hand": DDP}


def distances(cases, rows=4, size=8, lr=1e-4):
    """Take a step in float64, from equal weights; return {(method, norm): (moved, far)}.

    moved: how far the step took one device's weights. far: how far from there it took
    the ranks'. cases: pairs of a method, one of WRAPS, and one of NORMS. rows: of each
    of two ranks. size: the images' height and width.
    """
    seen = run_ranks(_rank, 2, cases, rows, size, lr, timeout=300)
    return {case: tuple(map(most, zip(*(rank[case] for rank in seen)))) for case in cases}


def _rank(cases, rows, size, lr):
    X = 2 * torch.rand(2 * rows, 3, size, size, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(0)) - 1
    y, start = torch.arange(2 * rows) % 10, build("resnet50", "cifar").double()
    for layer in start.modules():  # untrained statistics would let scores explode:
        if isinstance(layer, torch.nn.BatchNorm2d):  # take over the minibatch's
            layer.momentum = 1.0
    start.train()(X)
    return {(method, norm): _step(WRAPS[method], start, norm, X, y, lr)
            for method, norm in cases}


def _step(wrap, start, norm, X, y, lr):
    one = copy.deepcopy(start).train(norm != "eval")
    for X_shard, y_shard in zip(*(t.chunk(2 if norm == "shards" else 1) for t in (X, y))):
        loss = F.cross_entropy(one(X_shard), y_shard, reduction="sum") / len(X)
        loss.backward()
    net = copy.deepcopy(start).train(norm != "eval")
    net = synchronise(net) if norm == "sync" else net
    mine = [t.chunk(2)[dist.get_rank()] for t in (X, y)]
    wrapped = wrap(net)  # it must live until backward has ended
    F.cross_entropy(wrapped(mine[0]), mine[1]).backward()
    for model in one, net:
        torch.optim.SGD(model.parameters(), lr).step()
    weights = [list(model.parameters()) for model in (start, one, net)]
    return apart(weights[1], weights[0]), apart(weights[2], weights[1])
