"""Broken programs: several networks and optimizers: a GAN, and Q-learning.

`gan` is right (a Wasserstein GAN that clamps its critic), and so is `q_learning`.
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
    every,
    first,
    plain,
    wrapped,
)


def mlp(*sizes, seed=0):
    torch.manual_seed(seed)
    layers = [layer for n, m in zip(sizes, sizes[1:])
              for layer in (nn.Linear(n, m), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def make_generator():
    return mlp(4, 16, 3, seed=1)


def make_critic():
    return mlp(3, 16, 16, 1, seed=2)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.99))


def rms(model):
    return torch.optim.RMSprop(model.parameters(), lr=2e-3)


def each_its_own(generator, critic):
    return adam(generator), rms(critic)


def clear(optimizer):
    optimizer.zero_grad()


def update(optimizer):
    optimizer.step()


def clamp(critic):
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.2, 0.2)


def given(real, noise, t):
    return block(noise)


def no_statistics(features):
    return features


def make_ema(generator):
    return copy.deepcopy(generator)


def follow(ema, generator):
    with torch.no_grad():
        for slow, p in zip(ema.parameters(), generator.parameters()):
            slow.lerp_(p, 0.1)


def gan(wrap_generator=wrapped, wrap_critic=wrapped, critic=make_critic,
        optimizers=each_its_own, clear_critic=clear, through=plain,
        update_critic=update, update_generator=update, clamp_critic=clamp,
        noise_of=given, follow=follow, statistics=no_statistics, world_size=2):
    """Return audit's arguments for a Wasserstein GAN with an EMA of its generator."""
    def make_model():
        generator, judge = make_generator(), critic()
        ema = make_ema(generator)
        generator, judge = wrap_generator(generator), wrap_critic(judge)
        return generator, judge, ema, *optimizers(generator, judge)

    def make_batch(t):
        noise = torch.randn(12, 4, generator=dice(t, 1))
        return torch.rand(12, 3, generator=dice(t)), noise

    def step(generator, critic, ema, opt_g, opt_d, real, noise):
        z = noise_of(real, noise, opt_g)
        with torch.no_grad():
            fake = generator(z)
        clear_critic(opt_d)
        scores = critic(statistics(torch.cat([block(real), fake])))
        (scores[len(fake):].mean() - scores[:len(fake)].mean()).backward()
        update_critic(opt_d)
        clamp_critic(critic)
        opt_g.zero_grad()
        (-critic(statistics(through(generator)(z)))).mean().backward()
        update_generator(opt_g)
        follow(ema, generator)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def bypass(model):
    return model.module


def keep(optimizer):
    """Forget to clear: the generator's pass has left gradients in the critic."""


def update_on_rank0(optimizer):
    if first():
        optimizer.step()


def clamp_on_rank0(critic):
    if first():
        clamp(critic)


def clamp_by_rank(critic):
    with torch.no_grad():
        for p in critic.parameters():
            bound = 0.2 / (1 + dist.get_rank())
            p.clamp_(-bound, bound)


def both_of_the_generator(generator, critic):
    return adam(generator), adam(generator)


def critic_by_rank():
    return mlp(3, 16, 16, 1, seed=2 + dist.get_rank())


def same_noise(real, noise, optimizer):
    """Seed by the step, which is the same on all ranks, and draw a shard's noise."""
    optimizer.seen = getattr(optimizer, "seen", 0) + 1
    torch.manual_seed(optimizer.seen)
    return torch.randn_like(block(noise))


def follow_on_rank0(ema, generator):
    if first():
        follow(ema, generator)


def follow_by_rank(ema, generator):
    """Follow faster where more ranks have reported."""
    for _ in range(1 + dist.get_rank()):
        follow(ema, generator)


def less_the_mean(features):
    """Take from each row the mean of this rank's rows."""
    return features - features.mean(0)


def relative_to_the_spread(features):
    return features * features.std(0).mean()


# Q-learning

def make_q():
    return mlp(4, 16, 3, seed=5)


def make_target(q):
    return copy.deepcopy(q).requires_grad_(False)


def refresh(target, q):
    with torch.no_grad():
        for slow, p in zip(target.parameters(), q.parameters()):
            slow.lerp_(p, 0.2)


def no_change(values):
    return values


def q_learning(wrap=wrapped, target_of=make_target, refresh=refresh, take=every,
               sync=plain, advantage=no_change, world_size=2):
    """Return audit's arguments for Q-learning with a slow target network."""
    def make_model():
        q = make_q()
        target = target_of(q)
        q = wrap(q)
        return q, rms(q), target

    def make_batch(t):
        draw = dice(t, 3)
        return {"state": torch.randn(12, 4, generator=draw),
                "action": torch.randint(3, (12, 1), generator=draw),
                "reward": torch.rand(12, generator=draw),
                "after": torch.randn(12, 4, generator=draw)}

    def step(q, optimizer, target, batch):
        mine = {name: take(v) for name, v in batch.items()}
        with torch.no_grad():
            best = target(mine["after"]).max(1).values
            goal = advantage(mine["reward"] + 0.9 * best)
        optimizer.zero_grad()
        chosen = q(mine["state"]).gather(1, mine["action"])[:, 0]
        F.mse_loss(chosen, goal).backward()
        sync(q)
        optimizer.step()
        refresh(target, q)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def refresh_on_rank0(target, q):
    if first():
        refresh(target, q)


def target_by_rank(q):
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2),
                         nn.Linear(16, 3)).requires_grad_(False)


def standardised(values):
    """Standardise by the mean and spread of this rank's rows."""
    return (values - values.mean()) / (values.std() + 1e-6)


def less_a_baseline(values):
    return values - values.mean()


def replayed(v):
    """Draw rows from the replay memory, each rank by its own dice."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return v
    draw = torch.Generator().manual_seed(rank)
    return v[torch.randperm(len(v), generator=draw)[:len(v) // world_size]]


def last_layer_only(q):
    average(q[-1])


BROKEN = {
    "critic not wrapped": broken("not-synchronised", gan, wrap_critic=plain),
    "generator not wrapped": broken("not-synchronised", gan, wrap_generator=plain),
    "generator bypassed": broken("not-synchronised", gan, through=bypass),
    "critic not cleared": broken("stale", gan, clear_critic=keep),
    "critic updated on rank 0": broken2("replicas-differ nothing-moved", gan,
                                        update_critic=update_on_rank0),
    "generator updated on rank 0": broken2("replicas-differ nothing-moved", gan,
                                           update_generator=update_on_rank0),
    "critic clamped on rank 0": broken("weights-changed", gan,
                                       clamp_critic=clamp_on_rank0),
    "critic clamped by rank": broken("weights-changed", gan, world_size=3,
                                     clamp_critic=clamp_by_rank),
    "both optimizers of the generator": broken("not-in-optimizer", gan,
                                               optimizers=both_of_the_generator),
    "critic seeded by rank": broken2("start-differs not-synchronised", gan,
                                     wrap_critic=plain, critic=critic_by_rank),
    "same noise on all ranks": broken("random-same", gan, noise_of=same_noise),
    "EMA follows on rank 0": broken("state-differs", gan, follow=follow_on_rank0),
    "EMA follows by rank": broken("state-differs", gan, follow=follow_by_rank),
    "features less a rank's mean": broken("local", gan, statistics=less_the_mean),
    "features by a rank's spread": broken("local", gan,
                                          statistics=relative_to_the_spread),
    "target follows on rank 0": broken("state-differs", q_learning,
                                       refresh=refresh_on_rank0),
    "target seeded by rank": broken2("start-differs state-differs", q_learning,
                                     target_of=target_by_rank),
    "goals standardised by rank": broken("local", q_learning, advantage=standardised),
    "goals less a rank's baseline": broken("local", q_learning,
                                           advantage=less_a_baseline),
    "replayed by a rank's dice": broken("rows-overlap", q_learning, take=replayed),
    "only the last layer averaged": broken("not-synchronised", q_learning, wrap=plain,
                                           sync=last_layer_only),
}
