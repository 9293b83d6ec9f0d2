"""One step of a big network on ranks, beside the same step on one device.

    distances     how far each step takes the ranks from one device
    in_shards     one device that normalises shard by shard, as ranks do

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


def distances(cases, name="resnet50", world_size=2, rows=4, size=8, steps=2, lr=1e-4,
              timeout=300):
    """Train on ranks; return {(method, norm): (moved, far)}, the largest of all steps.

    moved: how far a step took one device's weights. far: how far from there it took
    the ranks'. Every step starts from equal weights, in float64; distances are those
    of `apart`. cases: pairs of a method, "ddp" or "ddp-by-hand", and what batch norm
    does, one of NORMS. rows: of a rank. The network has the stem for small images;
    size: their height and width.
    """
    _check(cases)
    seen = run_ranks(_rank, world_size, cases, name, rows, size, steps, lr,
                     timeout=timeout)
    return {case: tuple(most(values) for values in zip(*(
        step for rank in seen for step in rank[case]))) for case in cases}


def in_shards(net, X, y, world_size):
    """Add up the gradients of the minibatch's mean loss, one shard at a time."""
    for X_shard, y_shard in zip(X.chunk(world_size), y.chunk(world_size)):
        loss = F.cross_entropy(net(X_shard), y_shard, reduction="sum") / len(X)
        loss.backward()


def _rank(cases, name, rows, size, steps, lr):
    X, y = _minibatch(rows * dist.get_world_size(), size)
    start = _settled(build(name, "cifar").double(), X)
    return {(method, norm): _steps(WRAPS[method], copy.deepcopy(start), norm, X, y,
                                   steps, lr)
            for method, norm in cases}


def _steps(wrap, net, norm, X, y, steps, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = synchronise(net) if norm == "sync" else net
    model, seen = wrap(net.train(norm != "eval")), []
    X_shard, y_shard = X.chunk(world_size)[rank], y.chunk(world_size)[rank]
    for _ in range(steps):
        one = _alone(net, norm)
        in_shards(one, X, y, world_size if norm == "shards" else 1)
        F.cross_entropy(model(X_shard), y_shard).backward()
        ranks, after = list(net.parameters()), list(one.parameters())
        _descend(one, lr)
        moved = apart(after, ranks)  # the ranks' weights are still those before it
        _descend(net, lr)
        seen.append((moved, apart(ranks, after)))
    return seen


def _alone(net, norm):
    """Return a copy of the network that no rank's rows reach."""
    one = copy.deepcopy(net)
    for layer in one.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.__class__ = torch.nn.BatchNorm2d
    return one


@torch.no_grad()
def _descend(net, lr):
    for p in net.parameters():
        p -= lr * p.grad
        p.grad = None


def _minibatch(rows, size):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 3, size, size, dtype=torch.float64, generator=generator)
    return 2 * X - 1, torch.randint(10, (rows,), generator=generator)


@torch.no_grad()
def _settled(net, X):
    """Give the running statistics the minibatch's: untrained ones let scores explode.

    momentum 1 takes over what the last minibatch had.
    """
    layers = [layer for layer in net.modules()
              if isinstance(layer, torch.nn.BatchNorm2d)]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    net.train()(X)
    for layer, momentum in zip(layers, before):
        layer.momentum = momentum
    return net


def _check(cases):
    for method, norm in cases:
        if method not in WRAPS:
            raise ValueError(f"method must be one of {', '.join(WRAPS)}, "
                             f"got {method!r}")
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
