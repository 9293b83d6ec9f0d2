"""Training that is wrong on purpose, on ranks: what the audit must find, by its code.

BROKEN: name -> (code of the first finding, arguments of `audit`)
CLEAN:  name -> arguments of `audit`; nothing is wrong with these

Each is a few lines as people write them: a model, a minibatch, a step. See also the
seventeen bugs that test_equivalence.py plants in `train_batch`.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from manual_dp.parallel import DataParallel
from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, collectives


def net(*layers, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.Tanh(), nn.Linear(8, 3))


def sgd(model, lr=0.1, **options):
    return model, torch.optim.SGD(model.parameters(), lr=lr, **options)


def plain():
    return sgd(net())


def ddp():
    return sgd(DistributedDataParallel(net()))


def rows(n, seed=0):
    """Return make_batch for n rows of distinct values."""
    def make_batch(t):
        generator = torch.Generator().manual_seed(100 * seed + t)
        return (torch.rand(n, 5, dtype=torch.float64, generator=generator),
                torch.randint(3, (n,), generator=generator))
    return make_batch


def world():
    return dist.get_rank(), dist.get_world_size()


def shard(v):
    rank, world_size = world()
    return v[rank::world_size]


def average(model, skip=()):
    for i, p in enumerate(model.parameters()):
        if i not in skip and p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def mean_loss(model, X, y):
    return F.cross_entropy(model(X), y)


def fair_loss(model, X, y):
    """Return a shard's loss so that DDP's mean over ranks is the minibatch's mean."""
    mine = shard(y)
    return (F.cross_entropy(model(shard(X)), mine, reduction="sum")
            * dist.get_world_size() / len(y))


def ordinary(model, optimizer, X, y):
    optimizer.zero_grad()
    mean_loss(model, shard(X), shard(y)).backward()
    optimizer.step()


def fair(model, optimizer, X, y):
    optimizer.zero_grad()
    fair_loss(model, X, y).backward()
    optimizer.step()


def by_hand(model, optimizer, X, y):
    optimizer.zero_grad()
    mean_loss(model, shard(X), shard(y)).backward()
    average(model)
    optimizer.step()


def case(make_model, step, make_batch=None, **options):
    return {"make_model": make_model, "make_batch": make_batch or rows(12), "step": step,
            **options}


# gradients

def through_module(model, optimizer, X, y):
    ordinary(model.module, optimizer, X, y)


def in_no_sync(model, optimizer, X, y):
    with model.no_sync():
        ordinary(model, optimizer, X, y)


def backward_and(change):
    """Return a step that calls `change(model)` between backward and update."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        mean_loss(model, shard(X), shard(y)).backward()
        change(model)
        optimizer.step()
    return step


def summed(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def halved(model):
    for p in model.parameters():
        p.grad /= dist.get_world_size()


def rank0s(model):
    for p in model.parameters():
        dist.broadcast(p.grad, 0)


def kept_by_rank0(model):
    for p in model.parameters():
        total = p.grad / dist.get_world_size()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            p.grad = total


def all_but_the_last(model):
    rank, world_size = world()
    for p in model.parameters():
        grad = p.grad if rank < world_size - 1 else torch.zeros_like(p)
        dist.all_reduce(grad)
        p.grad = grad / world_size


def rank1_twice(model):
    for p in model.parameters():
        p.grad *= 2 if dist.get_rank() == 1 else 1
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def clipped_first(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    average(model)


def sum_by_rows(model, optimizer, X, y):
    optimizer.zero_grad()
    total = F.cross_entropy(model(shard(X)), shard(y), reduction="sum")
    (total / len(X)).backward()  # and DDP divides by the world size once more
    optimizer.step()


def never_zero(model, optimizer, X, y):
    mean_loss(model, shard(X), shard(y)).backward()
    optimizer.step()


def own_update(factor):
    """Return a step without an optimizer of torch's."""
    def step(model, X, y):
        model.zero_grad()
        mean_loss(model, shard(X), shard(y)).backward()
        summed(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad / factor()
    return step


def shifted(model, optimizer, X, y):
    ordinary(model, optimizer, X, y.roll(1))


# rows

def taking(mine):
    """Return a DDP step on X[mine(len(X))], y[mine(len(X))]."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        mean_loss(model, X[mine(len(X))], y[mine(len(X))]).backward()
        optimizer.step()
    return step


def first_half(n):
    return list(range(n // dist.get_world_size()))


def wide_edges(n):
    rank, world_size = world()
    return list(range(rank * n // world_size, min(n, (rank + 1) * n // world_size + 1)))


def no_tail(n):
    rank, world_size = world()
    each = n // world_size
    return list(range(rank * each, (rank + 1) * each))


def padded_with_its_last(n):
    mine = list(range(dist.get_rank(), n, 2))
    return mine + mine[-1:] * (-(-n // 2) - len(mine))


def sampled(set_epoch=True, **options):
    """Return a step that asks a DistributedSampler, and keeps it."""
    kept = {}

    def step(model, optimizer, X, y):
        told = {name: value() for name, value in options.items()}
        sampler = kept.setdefault("sampler", DistributedSampler(range(len(X)), **told))
        if set_epoch:
            sampler.set_epoch(kept.setdefault("epoch", -1) + 1)
            kept["epoch"] += 1
        mine = list(sampler)
        optimizer.zero_grad()
        mean_loss(model, X[mine], y[mine]).backward()
        optimizer.step()
    return step


def drawn_by_rank(t):
    return rows(12, seed=1 + dist.get_rank())(t)


def one_class(t):
    X, _ = rows(12)(t)
    return X, torch.zeros(12, dtype=torch.int64)


# models, buffers, rates

def unlike():
    return sgd(net(seed=dist.get_rank()))


def with_spare(wrap):
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.spare = net(), nn.Linear(2, 2)

        def forward(self, X):
            return self.body(X)
    return lambda: sgd(wrap(Spare()))


def with_norm(wrap):
    return lambda: sgd(wrap(net(nn.BatchNorm1d(8))))


def optimizer_of_a_copy():
    model = net()
    return DistributedDataParallel(model), sgd(copy.deepcopy(model))[1]


def scaled_rate():
    return sgd(DistributedDataParallel(net()), lr=0.1 * dist.get_world_size())


def scaled_adam():
    model = DistributedDataParallel(net())
    return model, torch.optim.Adam(model.parameters(), lr=0.01 * dist.get_world_size())


def few_rows(n):
    return list(range(dist.get_rank() * 4, dist.get_rank() * 4 + 4))


def rows_for_all(t):
    return rows(4 * dist.get_world_size())(t)


def own_rate(model, optimizer, X, y):
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + dist.get_rank())
    ordinary(model, optimizer, X, y)


def rescaled_on_rank1(model, optimizer, X, y):
    ordinary(model, optimizer, X, y)
    if dist.get_rank() == 1:
        with torch.no_grad():
            list(model.parameters())[2].mul_(0.9)


def rank1_rests(model, optimizer, X, y):
    optimizer.zero_grad()
    mean_loss(model, shard(X), shard(y)).backward()
    if dist.get_rank() == 0:
        optimizer.step()


def no_step(model, optimizer, X, y):
    mean_loss(model, shard(X), shard(y)).backward()


# accumulation

def accumulating(divisor=2, no_sync=True, step_each=False):
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        X_parts, y_parts = shard(X).chunk(2), shard(y).chunk(2)
        for i, (X_part, y_part) in enumerate(zip(X_parts, y_parts)):
            model.require_backward_grad_sync = not no_sync or i == 1
            (mean_loss(model, X_part, y_part) / divisor).backward()
            if step_each:
                optimizer.step()
                optimizer.zero_grad()
        if not step_each:
            optimizer.step()
    return step


# hangs and errors

def one_batch_more(model, optimizer, X, y):
    for _ in range(2 - dist.get_rank()):
        ordinary(model, optimizer, X, y)


def barrier_on_rank0(model, optimizer, X, y):
    ordinary(model, optimizer, X, y)
    if dist.get_rank() == 0:
        dist.barrier()


def raising(model, optimizer, X, y):
    if dist.get_rank() == 1:
        raise KeyError("no such file on rank 1")
    ordinary(model, optimizer, X, y)


# what is right, and looks suspicious

def wrapped(kind, **options):
    return lambda: sgd(kind(net(), **options))


def adam():
    model = DDP(net())
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def ring(model):
    for p in model.parameters():
        collectives.ring_allreduce(p.grad)
        p.grad /= dist.get_world_size()


def clipped_after(model):
    average(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def own_momentum(model, X, y):
    mean_loss(model, shard(X), shard(y)).backward()
    average(model)
    with torch.no_grad():
        for p in model.parameters():
            p.memory = p.grad + 0.9 * getattr(p, "memory", 0)
            p -= 0.1 * p.memory
            p.grad = None


def own_adam(model, X, y):
    mean_loss(model, shard(X), shard(y)).backward()
    average(model)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad.sign()
            p.grad = None


def averaging_weights(model, optimizer, X, y):
    ordinary(model, optimizer, X, y)
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p)
            p /= dist.get_world_size()


class OwnDDP(nn.Module):
    """Average each gradient in a hook of its own, as many write it."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for p in module.parameters():
            p.register_hook(self.mean)

    def mean(self, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()

    def forward(self, X):
        return self.module(X)


class Dropping(nn.Module):
    """Draw random numbers where no module says so."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, X):
        return F.dropout(self.body(X), 0.5)


class Tail(nn.Module):
    """Have a part that is called module, and another one beside it."""

    def __init__(self):
        super().__init__()
        self.module, self.tail = net(), nn.Linear(3, 3)

    def forward(self, X):
        return self.tail(self.module(2 * X))


def every_second(divisor):
    calls = []

    def step(model, optimizer, X, y):
        calls.append(1)
        (mean_loss(model, shard(X), shard(y)) / divisor).backward()
        if len(calls) % 2 == 0:
            average(model)
            optimizer.step()
            optimizer.zero_grad()
    return step


def skipping_when_empty(model, optimizer, X, y):
    optimizer.zero_grad()
    if len(shard(X)):
        fair_loss(model, X, y).backward()
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    average(model)
    optimizer.step()


def words(t):
    X, y = rows(12)(t)
    y[:5] = -100
    return X, y


def terms(y):
    return (y != -100).sum()


def by_terms(model, optimizer, X, y):
    optimizer.zero_grad()
    total = F.cross_entropy(model(shard(X)), shard(y), reduction="sum")
    (total * dist.get_world_size() / terms(y)).backward()
    optimizer.step()


def penalised(model, optimizer, X, y):
    optimizer.zero_grad()
    penalty = sum((p ** 2).sum() for p in model.parameters())
    (mean_loss(model, shard(X), shard(y)) + 0.1 * penalty).backward()
    optimizer.step()


def scaled_input(model, optimizer, X, y):
    ordinary(model, optimizer, 2 * X - 1, y)


def whole(model, optimizer, X, y):
    optimizer.zero_grad()
    mean_loss(model, X, y).backward()
    optimizer.step()


BROKEN = {
    "not wrapped": ("not-synchronised", case(plain, ordinary)),
    "called as model.module": ("not-synchronised", case(ddp, through_module)),
    "forward in no_sync": ("not-synchronised", case(ddp, in_no_sync)),
    "one bias not averaged": ("not-synchronised", case(
        plain, backward_and(lambda model: average(model, skip=[1])))),
    "summed, not averaged": ("sum", case(plain, backward_and(summed))),
    "summed on three ranks": ("sum", case(plain, backward_and(summed), world_size=3)),
    "summed, own update": ("sum", case(net, own_update(lambda: 1))),
    "divided after DDP": ("averaged-twice", case(ddp, backward_and(halved))),
    "sum over the minibatch under DDP": ("averaged-twice", case(ddp, sum_by_rows)),
    "uneven shards, means": ("uneven-shards", case(ddp, ordinary, rows(13))),
    "uneven shards on three ranks": ("uneven-shards", case(
        ddp, ordinary, rows(13), world_size=3)),
    "broadcast for all_reduce": ("one-rank", case(plain, backward_and(rank0s))),
    "sum stays on rank 0": ("not-sent-back", case(plain, backward_and(kept_by_rank0))),
    "last rank left out": ("rank-left-out", case(
        plain, backward_and(all_but_the_last), world_size=3)),
    "last rank left out of two": ("rank-left-out", case(
        plain, backward_and(all_but_the_last))),
    "rank 1 added twice": ("counted-twice", case(plain, backward_and(rank1_twice))),
    "clipped before the sum": ("clip", case(plain, backward_and(clipped_first))),
    "never cleared": ("stale", case(ddp, never_zero)),
    "labels shifted": ("labels", case(ddp, shifted)),
    "same rows on all ranks": ("rows-same", case(ddp, taking(first_half))),
    "edges overlap": ("rows-overlap", case(ddp, taking(wide_edges))),
    "tail dropped": ("rows-missed", case(ddp, taking(no_tail), rows(13))),
    "padded with its last row": ("rows-repeated", case(
        ddp, taking(padded_with_its_last), rows(13))),
    "padded by the sampler": ("rows-overlap", case(ddp, sampled(), rows(13))),
    "no set_epoch": ("sampler-epoch", case(ddp, sampled(set_epoch=False))),
    "a seed for each rank": ("sampler-seed", case(ddp, sampled(seed=lambda: world()[0]))),
    "sampler told rank 0": ("sampler-settings", case(
        ddp, sampled(num_replicas=lambda: 2, rank=lambda: 0))),
    "minibatch drawn by rank": ("batches-differ", case(ddp, ordinary, drawn_by_rank)),
    "one class only": ("no-gradient", case(
        lambda: sgd(DistributedDataParallel(nn.Linear(5, 1))), ordinary, one_class)),
    "weights of its own": ("start-differs", case(unlike, by_hand)),
    "spare layer under DDP": ("unused-parameter", case(
        with_spare(DistributedDataParallel), ordinary)),
    "spare layer by hand": ("unused-parameter", case(
        with_spare(lambda module: module), by_hand)),
    "optimizer of a copy": ("not-in-optimizer", case(optimizer_of_a_copy, ordinary)),
    "rank 1 does not step": ("nothing-moved", case(ddp, rank1_rests)),
    "nobody steps": ("nothing-moved", case(ddp, no_step)),
    "running means apart": ("buffers", case(with_norm(lambda module: module), by_hand)),
    "lr times world size": ("learning-rate", case(scaled_rate, ordinary)),
    "linear scaling of Adam": ("learning-rate", case(
        scaled_adam, taking(few_rows), rows_for_all, world_size=3)),
    "lr of its own": ("rates-differ", case(ddp, own_rate)),
    "weights rescaled on rank 1": ("weights-changed", case(ddp, rescaled_on_rank1)),
    "accumulation not divided": ("accumulation", case(ddp, accumulating(divisor=1))),
    "a step for each micro-batch": ("accumulation", case(
        ddp, accumulating(divisor=1, no_sync=False, step_each=True))),
    "accumulation over calls, not divided": ("accumulation", case(
        plain, every_second(1), steps=4)),
    "mean of means over words": ("uneven-shards", case(
        ddp, ordinary, words, count=terms)),
    "one batch more on rank 0": ("unequal-batches", case(
        ddp, one_batch_more, timeout=10)),
    "barrier on rank 0": ("hang", case(ddp, barrier_on_rank0, timeout=10)),
    "an exception on rank 1": ("exception", case(ddp, raising, timeout=20)),
}


CLEAN = {
    f"{name}, {world_size} ranks, {kind}": case(
        wrapped(wrap, **options), step, rows(n), world_size=world_size)
    for name, wrap, options in (("DDP, each gradient", NaiveDDP, {}),
                                ("DDP, buckets", BucketDDP, {"bucket_cap_mb": 1e-4}),
                                ("DDP, overlapped", DDP, {"bucket_cap_mb": 1e-4}),
                                ("torch DDP", DistributedDataParallel, {}))
    for world_size in (2, 3)
    for kind, step, n in (("even", ordinary, 12), ("uneven", fair, 13))
} | {
    f"DataParallel by hand, {world_size} replicas, {kind}": case(
        lambda world_size=world_size: sgd(DataParallel(net(), ["cpu"] * world_size)),
        whole, rows(n), world_size=1)
    for world_size in (2, 3) for kind, n in (("even", 12), ("uneven", 13))
} | {
    "Adam": case(adam, fair, rows(13)),
    "momentum, weight decay": case(
        lambda: sgd(NaiveDDP(net()), momentum=0.9, weight_decay=0.1), ordinary),
    "accumulation in no_sync": case(ddp, accumulating()),
    "a sampler with set_epoch": case(ddp, sampled()),
    "a ring by hand": case(plain, backward_and(ring)),
    "own update": case(net, own_update(dist.get_world_size)),
    "hooks of its own": case(lambda: sgd(OwnDDP(net())), ordinary),
    "a part called module": case(lambda: sgd(Tail()), by_hand),
    "a step every second call": case(plain, every_second(2), steps=4),
    "fewer rows than ranks": case(ddp, fair, rows(2), world_size=3),
    "no forward for no rows": case(plain, skipping_when_empty, rows(2), world_size=3),
    "a mean over some of the words": case(ddp, by_terms, words, count=terms),
    "a penalty in the loss": case(ddp, penalised),
    "own update with momentum": case(net, own_momentum),
    "own update by signs": case(net, own_adam),
    "weights averaged after plain SGD": case(plain, averaging_weights),
    "clipped after the sum": case(plain, backward_and(clipped_after)),
    "made in float32": case(
        lambda: sgd(DistributedDataParallel(nn.Linear(5, 3, dtype=torch.float32))),
        ordinary),
    "dropout as a function": case(lambda: sgd(DDP(Dropping())), ordinary),
    "dropout": case(lambda: sgd(DDP(net(nn.Dropout(0.5)))), ordinary),
    "layer norm, a frozen layer": case(
        lambda: sgd(DDP(net(nn.LayerNorm(8), nn.Linear(8, 8).requires_grad_(False)))),
        ordinary),
    "linear scaling, fixed rows a rank": case(
        scaled_rate, taking(few_rows), rows_for_all, world_size=3),
    "batch norm of a shard": case(with_norm(DistributedDataParallel), ordinary),
    "synchronised in each micro-batch": case(ddp, accumulating(no_sync=False)),
    "averaged by hand after DDP": case(ddp, backward_and(average)),
    "input made from the rows": case(ddp, scaled_input),
}
