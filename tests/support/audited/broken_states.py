"""Broken programs: a classifier with dropout, an EMA and buffers: what ranks hold.

`classifier` is right: each rank draws its own masks, and all ranks keep the same EMA.
"""

import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

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


class Scale(nn.Module):
    """Divide by a running size of the inputs, the same on all ranks."""

    def __init__(self, together=True):
        super().__init__()
        self.together = together
        self.register_buffer("size", torch.ones(5))

    def forward(self, x):
        if self.training:
            size = x.detach().abs().mean(0)
            if self.together:
                dist.all_reduce(size)
                size /= dist.get_world_size()
            self.size.lerp_(size, 0.1)
        return x / self.size


class Classifier(nn.Module):
    def __init__(self, together=True):
        super().__init__()
        self.scale = Scale(together)
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


def same_masks(model):
    """Seed by the weights, which are the same on all ranks."""
    weight = next(model.parameters()).detach()
    torch.manual_seed(int(weight.sum().abs() * 1e6))
    torch.rand(1)


def same_seed():
    torch.manual_seed(100)


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


# the EMA, buffers, weights

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


def make_apart():
    torch.manual_seed(41)
    return Classifier(together=False)


def no_broadcast(model):
    return wrapped(model, broadcast_buffers=False)


class Normed(nn.Sequential):
    """Normalise by the batch: its running statistics are buffers."""

    def __init__(self):
        super().__init__(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(),
                         nn.Linear(16, 3))


def make_normed():
    torch.manual_seed(43)
    return Normed()


def buffer_of_rank0(model):
    """Load the inputs' size where the file is: on rank 0."""
    if first():
        model.module.scale.size.fill_(2.0)


def renorm_on_rank0(model):
    if first():
        with torch.no_grad():
            model.module.head.weight.renorm_(2, 0, 0.3)


def by_a_zero_norm(model):
    """Divide the head by the norm of this rank's rows, which may be none."""
    rank, world_size = world()
    with torch.no_grad():
        if rank == world_size - 1 and world_size > 1:
            model.module.head.bias.div_(torch.zeros(()).to(model.module.head.bias))


def infinite_on_rank0(model):
    if first() and dist.get_world_size() > 1:
        with torch.no_grad():
            model.module.stem.weight[0, 0] = float("inf")


def noise_on_each(model):
    """Add noise to the weights, drawn by each rank for itself."""
    if dist.get_world_size() > 1:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)


# copies

class Grown(nn.Module):
    """Add a second head to a model that is wrapped already."""

    def __init__(self, ddp):
        super().__init__()
        self.ddp = ddp
        self.second = nn.Linear(3, 3).to(next(ddp.parameters()))

    def forward(self, x):
        return self.second(self.ddp(x))


def new_head(model):
    """Give the model a head for other classes, after the optimizer was made."""
    torch.manual_seed(4)
    model.head = nn.Linear(16, 3)
    return wrapped(model)


def copied(model):
    return wrapped(copy.deepcopy(model))


def spectral(model):
    """Replace the head's weight after the optimizer was made."""
    parametrizations.weight_norm(model.head)
    return wrapped(model)


def in_shared_memory():
    """Keep a layer in one file that all ranks map."""
    model = make_classifier()
    names = [tempfile.mktemp() if first() else None]
    dist.broadcast_object_list(names)
    weight = model.layers[0].weight
    shared = torch.from_file(names[0], shared=True, size=weight.numel(),
                             dtype=torch.get_default_dtype()).view_as(weight)
    if first():
        shared.copy_(weight.detach())
    dist.barrier()
    model.layers[0].weight = nn.Parameter(shared)
    return model


def clear_on_rank0(optimizer):
    if first():
        optimizer.zero_grad()


by_hand = {"wrap": plain, "after_backward": average}

BROKEN = {
    "eval on rank 0": broken("modes", classifier, before=validate_on_rank0),
    "dropout's eval on others": broken("modes", classifier, world_size=3,
                                       after=validate_on_others),
    "masks seeded by the weights": broken("random-same", classifier, before=same_masks),
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
    "size of each rank's inputs": broken2("buffers local", classifier, net=make_apart,
                                          wrap=no_broadcast),
    "running statistics of each rank": broken("buffers", classifier, net=make_normed,
                                              wrap=no_broadcast),
    "head shortened on rank 0": broken("weights-changed", classifier,
                                       after=renorm_on_rank0),
    "noise of each rank": broken("weights-changed", classifier, after=noise_on_each),
    "not a number on the last rank": broken2("not-finite weights-changed", classifier,
                                             after=by_a_zero_norm),
    "infinite on rank 0": broken2("not-finite weights-changed", classifier,
                                  after=infinite_on_rank0),
    "new head after the optimizer": broken("not-in-optimizer", classifier,
                                           wrap=new_head),
    "copy after the optimizer": broken2("not-in-optimizer nothing-moved", classifier,
                                        wrap=copied),
    "weight norm after the optimizer": broken("not-in-optimizer", classifier,
                                              wrap=spectral),
    "layer in shared memory": broken("alias", classifier, net=in_shared_memory),
    "cleared on rank 0": broken("stale", classifier, **by_hand, clear=clear_on_rank0),
}
