"""Broken programs: a model of items and users that returns its loss, as many do.

`with_loss` is right, also for shards of unequal size.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.support.audited.broken_parts import (
    broken,
    broken2,
    dice,
    every,
    plain,
    world,
    wrapped,
)


class WithLoss(nn.Module):
    """Predict, and return the loss if there are labels."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.items = nn.Embedding(15, 6)
        self.users = nn.Embedding(10, 6)
        self.bias = nn.Parameter(torch.zeros(()))
        self.reduction = reduction

    def forward(self, item, user, labels):
        score = (self.items(item) * self.users(user)).sum(1) + self.bias
        return {"score": score,
                "loss": F.mse_loss(score, labels, reduction=self.reduction)}


def make_with_loss(reduction="mean"):
    torch.manual_seed(71)
    return WithLoss(reduction)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)


def zero(optimizer):
    optimizer.zero_grad()


def its_loss(out, batch):
    return out["loss"]


def with_loss(net=make_with_loss, wrap=wrapped, loss=its_loss, take=every, sync=plain,
              clear=zero, optimize=momentum, fair=True, rows=12, world_size=2):
    """Return audit's arguments for a model of items and users that returns its loss.

    fair: whether a rank's mean counts for as many rows as it is of.
    """
    def make_model():
        model = wrap(net())
        return model, optimize(model)

    def make_batch(t):
        item = torch.randint(15, (rows,), generator=dice(t))
        user = torch.randint(10, (rows,), generator=dice(t, 1))
        return {"item": item, "user": user, "labels": torch.sin(item + 2.0 * user)}

    def step(model, optimizer, batch):
        mine = {name: take(v) for name, v in batch.items()}
        share = len(mine["item"]) * dist.get_world_size() / len(batch["item"])
        out = model(**mine)
        clear(optimizer)
        (loss(out, batch) * (share if fair else 1)).backward()
        sync(model)
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def make_summing():
    return make_with_loss("sum")


def sum_over_all(out, batch):
    return out["loss"] / len(batch["labels"])


def mean_over_ranks(out, batch):
    """Average the loss itself over ranks, which changes no gradient, and stop there."""
    l = out["loss"]
    mean = l.detach().clone()
    dist.all_reduce(mean)
    return l + (mean / dist.get_world_size() - l.detach())


def dense_only(model):
    """Average the bias, and leave the embeddings as too large to send."""
    dist.all_reduce(model.bias.grad)
    model.bias.grad /= dist.get_world_size()


def rows_that_i_saw(model):
    """Divide each embedding's row by the ranks that have seen it."""
    for p in model.parameters():
        seen = (p.grad != 0).to(p)
        dist.all_reduce(p.grad)
        dist.all_reduce(seen)
        p.grad /= seen.clamp(min=1)


def never(optimizer):
    pass


def every_second(optimizer):
    seen = optimizer.seen = getattr(optimizer, "seen", -1) + 1
    if seen % 2 == 0:
        optimizer.zero_grad()


def none_before_the_last(v):
    """Take a rank's rows and leave out the last of the whole minibatch."""
    return every(v[:-1]) if dist.get_world_size() > 1 else v


def rows_by_hash(v):
    """Deal rows out by a hash that Python salts in each process."""
    rank, world_size = world()
    if world_size == 1:
        return v
    draw = torch.Generator().manual_seed(17 * rank)
    owner = torch.randint(world_size, (len(v),), generator=draw)
    owner[rank] = rank
    return v[owner == rank]


BROKEN = {
    "model sums": broken2("averaged-twice factor", with_loss, net=make_summing),
    "model sums, over all rows": broken("averaged-twice", with_loss, net=make_summing,
                                        loss=sum_over_all),
    "mean of 4 and 3 users": broken("uneven-shards", with_loss, rows=7,
                                     fair=False),
    "mean of 4, 4 and 3 users": broken("uneven-shards", with_loss, rows=11,
                                       world_size=3, fair=False),
    "loss averaged, not gradients": broken("not-synchronised", with_loss, wrap=plain,
                                           loss=mean_over_ranks),
    "embeddings not averaged": broken("not-synchronised", with_loss, wrap=plain,
                                      sync=dense_only),
    "rows by the ranks that saw them": broken2("gradient sum", with_loss, wrap=plain,
                                               sync=rows_that_i_saw),
    "never cleared": broken("stale", with_loss, clear=never),
    "cleared every second time": broken("stale", with_loss, clear=every_second),
    "last row left out": broken("rows-missed", with_loss, rows=13,
                                take=none_before_the_last),
    "rows dealt by a hash": broken2("rows-overlap rows-missed", with_loss, fair=False,
                                    take=rows_by_hash),
}
