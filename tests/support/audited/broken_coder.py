"""Broken programs: an autoencoder that is one module, updated without an optimizer.

`coder` is right: its batch is a dataclass of images and noise, its rate falls by step,
and its gradients are averaged by hand; it follows the statistics of its codes.
"""

import dataclasses

import torch
import torch.distributed as dist
from torch import nn

from tests.support.audited.broken_parts import (
    average,
    block,
    broken,
    broken2,
    dice,
    every,
    first,
    world,
)


@dataclasses.dataclass
class Batch:
    """Hold what a minibatch is made of."""

    images: torch.Tensor
    noise: torch.Tensor


class Coder(nn.Module):
    def __init__(self, seed=81):
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(nn.Linear(9, 16), nn.Softplus(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 9))
        self.register_buffer("center", torch.zeros(4))
        self.steps = 0

    def forward(self, images, noise):
        mean, log_spread = self.encoder(images).chunk(2, 1)
        made = self.decoder(mean + noise * log_spread.exp())
        return made, mean, log_spread


def evidence(images, made, mean, log_spread):
    """Return the mean over rows of what was lost, and of the code's distance."""
    lost = (images - made).square().sum(1)
    distance = mean.square() + (2 * log_spread).exp() - 2 * log_spread
    return (lost + 0.1 * distance.sum(1)).mean()


def falling(model):
    return 0.02 / (1 + model.steps)


def descend(model, rate):
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad


def mean_code(mean):
    center = mean.detach().mean(0)
    dist.all_reduce(center)
    return center / dist.get_world_size()


def given(batch, take, model):
    return take(batch.noise)


def nothing(model):
    pass


def coder(net=Coder, take=block, loss=evidence, noise=given, sync=average, rate=falling,
          update=descend, center=mean_code, after=nothing, rows=12, world_size=2):
    """Return audit's arguments for a variational autoencoder."""
    def make_batch(t):
        images = torch.rand(rows, 9, generator=dice(t))
        return Batch(images, torch.randn(rows, 4, generator=dice(t, 2)))

    def step(model, batch):
        model.zero_grad()
        images = take(batch.images)
        made, mean, log_spread = model(images, noise(batch, take, model))
        loss(images, made, mean, log_spread).backward()
        sync(model)
        update(model, rate(model))
        model.center.lerp_(center(mean), 0.2)
        model.steps += 1
        after(model)

    return {"make_model": net, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def of_rank_seed():
    return Coder(81 + dist.get_rank())


def summed(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def encoder_only(model):
    average(model.encoder)


def minimum(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.MIN)


def sum_on_rank0(model):
    for p in model.parameters():
        dist.reduce(p.grad, 0)
        p.grad /= dist.get_world_size()


def sent_by_its_owner(model):
    """Send each parameter's gradient from one rank, round robin."""
    for i, p in enumerate(model.parameters()):
        dist.broadcast(p.grad, i % dist.get_world_size())


def weighted_by_rank(model):
    """Weight ranks by their number, from one, and divide by the ranks."""
    rank, world_size = world()
    for p in model.parameters():
        p.grad *= rank + 1
        dist.all_reduce(p.grad)
        p.grad /= world_size


def same_noise(batch, take, model):
    torch.manual_seed(model.steps)
    return torch.randn_like(take(batch.noise))


def noise_of_the_first_rows(batch, take, model):
    """Take as much noise as is needed, from the batch's beginning."""
    return batch.noise[:len(take(batch.images))]


def noise_dealt_otherwise(batch, take, model):
    return every(batch.noise)


def center_of_mine(mean):
    return mean.detach().mean(0)


def moments(images, made, mean, log_spread):
    """Ask that the codes of this rank's rows have no mean and spread one."""
    center, spread = mean.mean(0), mean.var(0)
    return evidence(images, made, mean, log_spread) + (
        center.square() + (spread - 1).square()).sum()


def summed_evidence(images, made, mean, log_spread):
    """Sum over rows, divide by a full minibatch, and average over ranks once more."""
    return evidence(images, made, mean, log_spread) * len(images) / 12


def rate_by_loss(model):
    """Halve the rate where this rank's gradients were large before the sum."""
    return falling(model) * (0.5 if model.large else 1)


def large_then_average(model):
    norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt()
    mean = norm.clone()
    dist.all_reduce(mean)
    model.large = bool(norm > 1.0001 * mean / dist.get_world_size())
    average(model)


def rate_by_rows_seen(model):
    return 0.02 / (1 + model.steps * dist.get_world_size())


def descend_on_rank0(model, rate):
    if first():
        descend(model, rate)


def descend_unless_large(model, rate):
    """Skip the update where rank 1's own norm says so."""
    if first() or model.steps != 1:
        descend(model, rate)


def prune_on_rank0(model):
    if first():
        with torch.no_grad():
            for p in model.parameters():
                p *= p.abs() > 0.05


def averaged_weights(model):
    """Average the weights of ranks after own updates, without the last layer."""
    for p in list(model.parameters())[:-2]:
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def first_row_again(v):
    """Fill a rank's rows up with their first, where the last has been cut off."""
    rank, world_size = world()
    if world_size == 1:
        return v
    n = len(v) // world_size
    return torch.cat([v[rank * n:(rank + 1) * n - 1], v[rank * n:rank * n + 1]])


BROKEN = {
    "seeded by rank": broken("start-differs", coder, net=of_rank_seed),
    "summed": broken("sum", coder, sync=summed),
    "decoder not averaged": broken("not-synchronised", coder, sync=encoder_only),
    "minimum instead of mean": broken("gradient", coder, sync=minimum),
    "reduced, all divide": broken("not-sent-back", coder, sync=sum_on_rank0),
    "each from one rank": broken2("one-rank gradient", coder, sync=sent_by_its_owner),
    "weighted by rank": broken2("gradient counted-twice", coder, world_size=3,
                                sync=weighted_by_rank),
    "noise seeded by the step": broken("random-same", coder, noise=same_noise),
    "noise of the first rows": broken2("labels rows-same", coder,
                                       noise=noise_of_the_first_rows),
    "center of each rank's codes": broken("buffers", coder, center=center_of_mine),
    "moments of a rank's codes": broken("local", coder, loss=moments),
    "over a full minibatch, averaged": broken("averaged-twice", coder,
                                              loss=summed_evidence),
    "rate by a rank's gradients": broken2("replicas-differ rates-differ", coder,
                                          sync=large_then_average, rate=rate_by_loss),
    "rate falls by ranks": broken2("learning-rate factor", coder,
                                   rate=rate_by_rows_seen),
    "updated on rank 0": broken2("replicas-differ nothing-moved", coder,
                                 update=descend_on_rank0),
    "update skipped once": broken("replicas-differ", coder,
                                  update=descend_unless_large),
    "pruned on rank 0": broken("weights-changed", coder, after=prune_on_rank0),
    "weights averaged, head not": broken("not-synchronised", coder, sync=nothing,
                                         after=averaged_weights),
    "rows taken twice": broken2("rows-repeated rows-missed", coder,
                                take=first_row_again),
    "dealt by two rules": broken("labels", coder,
                                 noise=noise_dealt_otherwise),
}
