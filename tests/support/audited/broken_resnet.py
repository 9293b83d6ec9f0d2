"""Broken programs: a small ResNet under DDP, with SGD, a schedule, and epochs.

`resnet` takes a minibatch a step; `epochs` is one pass over a sampler's loader a step.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from tests.support.audited.broken_parts import (
    broken,
    broken2,
    dice,
    every,
    first,
    wrapped,
)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


def make_resnet():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), Block(8), Block(8),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def nesterov(model, lr=0.2, params=None, **options):
    options = {"momentum": 0.9, "weight_decay": 1e-2, "nesterov": True, **options}
    return torch.optim.SGD(params or model.parameters(), lr=lr, **options)


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, T_max=12)


def one_step(scheduler, loss):
    scheduler.step()


def images(n, generator):
    return (torch.randn(n, 2, 5, 5, generator=generator),
            torch.randint(4, (n,), generator=generator))


def cross_entropy(logits, y):
    return F.cross_entropy(logits, y, label_smoothing=0.1)


def resnet(wrap=wrapped, optimize=nesterov, schedule=cosine, advance=one_step,
           loss=cross_entropy, before=None, after=None, world_size=2):
    """Return audit's arguments for a ResNet under DDP, with a schedule."""
    def make_model():
        model = wrap(make_resnet())
        optimizer = optimize(model)
        return model, optimizer, schedule(optimizer)

    def make_batch(t):
        return images(12, dice(t))

    def step(model, optimizer, scheduler, X, y):
        l = loss(model(every(X)), every(y))
        optimizer.zero_grad()
        l.backward()
        if before:
            before(model, optimizer)
        optimizer.step()
        if after:
            after(model, optimizer)
        advance(scheduler, l.detach())

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


# rates and settings

def once_a_rank(scheduler, loss):
    for _ in range(dist.get_world_size()):
        scheduler.step()


def only_rank0(scheduler, loss):
    if first():
        scheduler.step()


def by_my_loss(scheduler, loss):
    scheduler.step(loss)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.02)


def shorter(optimizer):
    return CosineAnnealingLR(optimizer, T_max=12 // dist.get_world_size())


def longer(optimizer):
    return CosineAnnealingLR(optimizer, T_max=12 * dist.get_world_size())


def shorter_warm_up(optimizer):
    return LinearLR(optimizer, 0.1, total_iters=4 // dist.get_world_size())


def higher_peak(optimizer):
    return OneCycleLR(optimizer, max_lr=0.2 * dist.get_world_size(), total_steps=12)


def earlier_drop(optimizer):
    return StepLR(optimizer, step_size=max(1, 2 // dist.get_world_size()))


def warm_up_by_rank(model, optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 1 - 0.1 * dist.get_rank()


def momentum_by_rank(model):
    return nesterov(model, momentum=0.9 - 0.1 * dist.get_rank())


def no_nesterov_on_others(model):
    return nesterov(model, nesterov=first())


def decay_times_world(model):
    return nesterov(model, weight_decay=1e-2 * dist.get_world_size())


def momentum_to_the_world(model):
    return nesterov(model, momentum=0.9 ** dist.get_world_size())


def decay_on_rank0(model):
    return nesterov(model, weight_decay=1e-2 if first() else 0.0)


def head_forgotten(model):
    layers = list(model.module)[:-1]
    return nesterov(model, params=[p for layer in layers for p in layer.parameters()])


def norms_forgotten(model):
    """Make one group of what decays and never add the other."""
    decaying = [p for p in model.parameters() if p.ndim > 1]
    return nesterov(model, params=[{"params": decaying, "weight_decay": 1e-2}])


# gradients

def summed_loss(logits, y):
    return F.cross_entropy(logits, y, reduction="sum", label_smoothing=0.1)


def loss_over_world(logits, y):
    return cross_entropy(logits, y) / dist.get_world_size()


def mean_again(model, optimizer):
    for p in model.parameters():
        p.grad /= dist.get_world_size()


def summed_again(model, optimizer):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def cleared_too_late(model, optimizer):
    optimizer.zero_grad()


def clamped_on_others(model, optimizer):
    if not first():
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)


def loaded_by_rank0(model, optimizer):
    """Go back to a checkpoint's head, and tell no other rank."""
    if first():
        model.module[-1].reset_parameters()


def given_back(model):
    """Wrap, then replace the wrapped layers by copies on another device."""
    ddp = wrapped(model)
    for block in (ddp.module[1], ddp.module[2]):
        block.conv.weight = nn.Parameter(block.conv.weight.detach().clone())
    return ddp


BROKEN = {
    "schedule steps once a rank": broken("learning-rate", resnet, advance=once_a_rank),
    "schedule steps on rank 0": broken("rates-differ", resnet, advance=only_rank0),
    "plateau of a shard's loss": broken("rates-differ", resnet, schedule=plateau,
                                        advance=by_my_loss),
    "cosine over fewer steps": broken("learning-rate", resnet, schedule=shorter),
    "cosine over more steps": broken("learning-rate", resnet, schedule=longer),
    "warm-up over fewer steps": broken("learning-rate", resnet,
                                       schedule=shorter_warm_up),
    "peak times world size": broken2("learning-rate sum", resnet,
                                     schedule=higher_peak),
    "rate drops earlier": broken("learning-rate", resnet, schedule=earlier_drop),
    "warm-up by rank": broken("rates-differ", resnet, before=warm_up_by_rank),
    "momentum by rank": broken("settings", resnet, optimize=momentum_by_rank),
    "nesterov on rank 0": broken("settings", resnet, optimize=no_nesterov_on_others),
    "decay times world size": broken("settings", resnet, optimize=decay_times_world),
    "momentum to the world's power": broken("settings", resnet,
                                            optimize=momentum_to_the_world),
    "decay on rank 0": broken("settings", resnet, optimize=decay_on_rank0),
    "head in no optimizer": broken("not-in-optimizer", resnet, optimize=head_forgotten),
    "norms in no optimizer": broken("not-in-optimizer", resnet,
                                    optimize=norms_forgotten),
    "summed loss under DDP": broken2("averaged-twice factor", resnet, loss=summed_loss),
    "loss over world size under DDP": broken("averaged-twice", resnet,
                                             loss=loss_over_world),
    "divided again after DDP": broken("averaged-twice", resnet, before=mean_again),
    "summed again after DDP": broken("sum", resnet, before=summed_again),
    "cleared after backward": broken2("no-gradient nothing-moved", resnet,
                                      before=cleared_too_late),
    "clamped on other ranks": broken("weights-changed", resnet, world_size=3,
                                     after=clamped_on_others),
    "head set anew on rank 0": broken("weights-changed", resnet,
                                      after=loaded_by_rank0),
    "weights replaced after wrapping": broken2("exception not-synchronised", resnet,
                                               wrap=given_back),
}
