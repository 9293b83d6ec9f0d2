"""Broken programs: a classifier with dropout, an EMA and buffers: what ranks hold.

`classifier` is right: each rank draws its own masks, and all ranks keep the same EMA.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.support.audited.broken_parts import (
    average,
    block,
    broken,
    broken2,
    dice,
    first,
    plain,
    world,
    wrapped,
)


class Classifier(nn.Module):
    def __init__(self, scale=None):
        super().__init__()
        self.scale = scale or nn.Identity()
        self.stem = nn.Linear(5, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = F.silu(self.stem(self.scale(x)))
        for layer in self.layers:
            x = x + self.dropout(F.silu(layer(x)))
        return self.head(x)


def make_classifier():
    torch.manual_seed(41)
    return Classifier()


def own_masks():
    torch.manual_seed(100 + dist.get_rank())


def adamax(model):
    return torch.optim.Adamax(model.parameters(), lr=1e-2)


def follow(ema, model, decay=0.9):
    with torch.no_grad():
        for slow, p in zip(ema.parameters(), model.parameters()):
            slow.lerp_(p, 1 - decay)


def make_ema(net):
    return copy.deepcopy(net).requires_grad_(False)


def nothing(*made):
    pass


def classifier(net=make_classifier, wrap=wrapped, optimize=adamax, ema_of=make_ema,
               seed=own_masks, before=nothing, after_backward=nothing, after=nothing,
               clear=lambda optimizer: optimizer.zero_grad(), follow=follow,
               world_size=2):
    """Return audit's arguments for a classifier with dropout and an EMA."""
    def make_model():
        model = net()
        ema = ema_of(model)
        optimizer = optimize(model)
        model = wrap(model)
        seed()
        return model, optimizer, ema

    def make_batch(t):
        X = torch.randn(12, 5, generator=dice(t))
        return X, X.topk(3).indices[:, 0] % 3

    def step(model, optimizer, ema, X, y):
        before(model)
        clear(optimizer)
        F.cross_entropy(model(block(X)), block(y)).backward()
        after_backward(model)
        optimizer.step()
        after(model)
        follow(ema, model)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


# modes, masks, what is frozen

def validate_on_rank0(model):
    """Look how good it is, on rank 0, and forget to train again."""
    if first():
        model.eval()


def validate_on_others(model):
    if not first():
        model.module.dropout.eval()


def masks_by_weights(model):
    """Seed by the weights, which are the same on all ranks."""
    weight = next(model.parameters()).detach()
    torch.manual_seed(int(weight.sum().abs() * 1e6))


def masks_by_step(model):
    model.seen = getattr(model, "seen", 0) + 1
    torch.manual_seed(1234 + model.seen)


class Dropping(Classifier):
    """Leave a layer out on some ranks, as LayerDrop does with a die of each rank."""

    def forward(self, x):
        x = F.silu(self.stem(self.scale(x)))
        for i, layer in enumerate(self.layers):
            if (i + dist.get_rank()) % 2 == 0 or dist.get_world_size() == 1:
                x = x + F.silu(layer(x))
        return self.head(x)


def make_dropping():
    torch.manual_seed(41)
    return Dropping()


def freeze_on_rank0(model):
    if first() and dist.get_world_size() > 1:
        model.stem.requires_grad_(False)
    return model


def freeze_on_last(model):
    rank, world_size = world()
    if rank == world_size - 1 and world_size > 1:
        model.layers[0].requires_grad_(False)
    return model


def average_or_zeros(model):
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad)
        if p.grad is not None:
            p.grad /= dist.get_world_size()


# the EMA, the start

def follow_on_rank0(ema, model):
    if first():
        follow(ema, model)


def follow_slower(ema, model):
    follow(ema, model, decay=0.9 if first() else 0.99)


def follow_to_the_world(ema, model):
    follow(ema, model, decay=0.9 ** dist.get_world_size())


def make_by_rank():
    torch.manual_seed(41 + dist.get_rank())
    return Classifier()


def clear_on_rank0(optimizer):
    if first():
        optimizer.zero_grad()


by_hand = {"wrap": plain, "after_backward": average}

BROKEN = {
    "eval on rank 0": broken("modes", classifier, before=validate_on_rank0),
    "dropout's eval on others": broken("modes", classifier, world_size=3,
                                       after=validate_on_others),
    "masks seeded by the weights": broken("random-same", classifier,
                                          before=masks_by_weights),
    "masks seeded by the step": broken("random-same", classifier, world_size=3,
                                       before=masks_by_step),
    "layers dropped by rank": broken2("unused-parameter exception", classifier,
                                      net=make_dropping),
    "frozen on rank 0": broken("frozen", classifier, wrap=freeze_on_rank0,
                               after_backward=average_or_zeros),
    "frozen on the last rank": broken2("frozen mismatch", classifier,
                                       wrap=freeze_on_last, after_backward=average),
    "EMA on rank 0": broken("state-differs", classifier, follow=follow_on_rank0),
    "EMA slower on others": broken("state-differs", classifier, world_size=3,
                                   follow=follow_slower),
    "EMA of each rank's own start": broken2("start-differs state-differs", classifier,
                                            net=make_by_rank),
    "seeded by rank, not wrapped": broken("start-differs", classifier, **by_hand,
                                          net=make_by_rank),
    "cleared on rank 0": broken("stale", classifier, **by_hand, clear=clear_on_rank0),
}
