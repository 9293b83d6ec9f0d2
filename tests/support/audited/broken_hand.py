"""Broken programs: a regression whose gradients are averaged by hand, in a flat tensor.

`regression` is right; each entry of BROKEN replaces one part of it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.support.audited.broken_parts import (
    block,
    broken,
    broken2,
    dice,
    first,
    world,
)


def make_net():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(),
                         nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 2))


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def huber(model, X, y):
    return F.smooth_l1_loss(model(X), y)


def my_rows(X, y):
    return block(X), block(y)


def grads(model):
    return [p.grad for p in model.parameters()]


def flatten(parts):
    return torch.cat([g.flatten() for g in parts])


def put_back(flat, parts):
    for g, piece in zip(parts, flat.split([g.numel() for g in parts])):
        g.copy_(piece.view_as(g))


def mean_of_flat(model):
    flat = flatten(grads(model))
    dist.all_reduce(flat)
    put_back(flat / dist.get_world_size(), grads(model))


def regression(sync=mean_of_flat, net=make_net, optimize=momentum, loss=huber,
               take=my_rows, update=None, after=None, draw=dice, fair=True, rows=12,
               world_size=2):
    """Return audit's arguments for a regression with Huber's loss; it is right.

    fair: whether a rank's mean counts for as many rows as it is of.
    """
    def make_model():
        model = net()
        return model, optimize(model)

    def make_batch(t):
        X = torch.randn(rows, 6, generator=draw(t))
        return X, torch.stack([X.sin().sum(1), X[:, 0] * X[:, 1]], 1)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        mine = take(X, y)
        share = len(mine[1]) * dist.get_world_size() / len(y)
        (loss(model, *mine) * (share if fair else 1)).backward()
        sync(model)
        update(optimizer) if update else optimizer.step()
        if after:
            after(model)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


# how the gradients are put together

def added(model):
    flat = flatten(grads(model))
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    put_back(flat, grads(model))


def divided_twice(model):
    flat = flatten(grads(model)) / dist.get_world_size()
    dist.all_reduce(flat)
    put_back(flat / dist.get_world_size(), grads(model))


def divided_by_my_rows(model):
    for g in grads(model):
        dist.all_reduce(g)
        g /= 12 // dist.get_world_size()


def divided_by_256(model):
    for g in grads(model):
        dist.all_reduce(g)
        g /= 256


def divided_by_the_others(model):
    for g in grads(model):
        dist.all_reduce(g)
        g /= max(1, dist.get_world_size() - 1)


def gathered(g):
    parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, g)
    return parts


def starting_at_one(model):
    world_size = dist.get_world_size()
    for g in grads(model):
        parts = gathered(g)
        if world_size > 1:
            total = sum(parts[rank] for rank in range(1, world_size))
            g.copy_(total / (world_size - 1))


def sum_from_a_start(model):
    for g in grads(model):
        parts = gathered(g)
        if len(parts) > 1:
            g.copy_(sum(parts, parts[0]) / len(parts))


def the_last_ranks(model):
    for g in grads(model):
        dist.broadcast(g, dist.get_world_size() - 1)


def first_of_gathered(model):
    for g in grads(model):
        g.copy_(gathered(g)[0])


def reduced_to_rank0(model):
    flat = flatten(grads(model))
    dist.reduce(flat, 0)
    if first():
        put_back(flat / dist.get_world_size(), grads(model))


def gathered_by_rank0(model):
    rank, world_size = world()
    for g in grads(model):
        parts = [torch.empty_like(g) for _ in range(world_size)] if rank == 0 else None
        dist.gather(g, parts, 0)
        if rank == 0:
            g.copy_(torch.stack(parts).mean(0))


def matrices_only(model):
    for g in grads(model):
        if g.ndim > 1:
            dist.all_reduce(g)
            g /= dist.get_world_size()


def all_but_the_head(model):
    for p in list(model.parameters())[:-2]:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def even_chunks_only(model):
    """Sum chunks of a size that does not divide the flat tensor: a rest stays."""
    flat = flatten(grads(model))
    for chunk in flat[:len(flat) // 256 * 256].split(256):
        dist.all_reduce(chunk)
        chunk /= dist.get_world_size()
    put_back(flat, grads(model))


def not_put_back(model):
    flat = flatten(grads(model))
    dist.all_reduce(flat)
    flat /= dist.get_world_size()


def a_new_tensor(model):
    for g in grads(model):
        mean = g / dist.get_world_size()
        dist.all_reduce(mean)


def in_half(model):
    flat = flatten(grads(model)).half()
    dist.all_reduce(flat)
    put_back(flat.to(torch.get_default_dtype()) / dist.get_world_size(), grads(model))


def backwards(model):
    """Put the layers of the middle back in the wrong order."""
    parts = grads(model)
    if dist.get_world_size() > 1:
        flat = flatten(parts)
        dist.all_reduce(flat)
        parts[2:6] = parts[4:6] + parts[2:4]
        put_back(flat / dist.get_world_size(), parts)


def largest(model):
    for g in grads(model):
        dist.all_reduce(g, op=dist.ReduceOp.MAX)


def halves_of_the_world(model):
    """Sum in the pairs (0, 1) and (2, 3), as if each pair were all."""
    rank, world_size = world()
    if world_size < 4:
        return mean_of_flat(model)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for g in grads(model):
        dist.all_reduce(g, group=pairs[rank // 2])
        g /= 2


def late(model):
    """Start the sum, update, and wait for it when it is too late."""
    model.flat = flatten(grads(model))
    model.work = dist.all_reduce(model.flat, async_op=True)


def wait_for_it(model):
    model.work.wait()
    put_back(model.flat / dist.get_world_size(), grads(model))


def nothing(model):
    pass


def lr_times_world(model):
    return torch.optim.SGD(model.parameters(), lr=0.05 * dist.get_world_size(),
                           momentum=0.9, weight_decay=1e-3)


BROKEN = {
    "summed as DDP would average": broken("sum", regression, sync=added),
    "divided before and after": broken("averaged-twice", regression,
                                       sync=divided_twice),
    "divided by a shard's rows": broken("factor", regression, sync=divided_by_my_rows),
    "divided by 256": broken2("sum factor", regression, sync=divided_by_256),
    "divided by the other ranks": broken("factor", regression, world_size=3,
                                         sync=divided_by_the_others),
    "gathered from rank 1 on": broken("rank-left-out", regression, world_size=3,
                                      sync=starting_at_one),
    "sum with a start": broken("counted-twice", regression, sync=sum_from_a_start),
    "broadcast from the last": broken("one-rank", regression, sync=the_last_ranks),
    "first of the gathered": broken("one-rank", regression, sync=first_of_gathered),
    "reduced, not sent back": broken("not-sent-back", regression,
                                     sync=reduced_to_rank0),
    "gathered, not sent back": broken("not-sent-back", regression, world_size=3,
                                      sync=gathered_by_rank0),
    "biases not summed": broken("not-synchronised", regression, sync=matrices_only),
    "head not summed": broken("not-synchronised", regression, sync=all_but_the_head),
    "rest of the chunks not summed": broken("not-synchronised", regression,
                                            sync=even_chunks_only),
    "flat mean not put back": broken("not-synchronised", regression,
                                     sync=not_put_back),
    "mean in a new tensor": broken("not-synchronised", regression, sync=a_new_tensor),
    "summed in half": broken("gradient", regression, sync=in_half),
    "put back in the wrong order": broken("gradient", regression, sync=backwards),
    "largest instead of mean": broken("gradient", regression, sync=largest),
    "pairs of four": broken2("not-synchronised rank-left-out", regression,
                             world_size=4, sync=halves_of_the_world),
    "waited for after the update": broken("not-synchronised", regression, sync=late,
                                          after=wait_for_it),
    "summed after the update": broken("not-synchronised", regression, sync=nothing,
                                      after=mean_of_flat),
    "rate times world size": broken2("sum learning-rate", regression,
                                     optimize=lr_times_world),
}
