"""Broken programs: the GPT's clipping, AdamW's settings, and tokens that rows lack."""

import copy

import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.support.audited.broken_gpt import (
    adamw,
    by_hand,
    clip,
    gpt,
    no_clip,
    synced,
)
from tests.support.audited.broken_parts import average, broken, broken2, first


def clip_each(model, optimizer):
    clip_grad_norm_(model.parameters(), 0.3)


def clipped_then_averaged(model, optimizer):
    clip(model, optimizer)
    average(model)


def clip_on_rank0(model, optimizer):
    if first():
        clip(model, optimizer)


def clip_at_times_world(model, optimizer):
    clip_grad_norm_(model.parameters(), 0.3 * dist.get_world_size())


def clip_at_over_world(model, optimizer):
    clip_grad_norm_(model.parameters(), 0.3 / dist.get_world_size())


def clip_by_summed_norm(model, optimizer):
    """Sum the squared norms over ranks, as for sharded gradients."""
    total = sum(p.grad.square().sum() for p in model.parameters())
    dist.all_reduce(total)
    factor = (0.3 / total.sqrt()).clamp(max=1)
    for p in model.parameters():
        p.grad *= factor


def clip_values_on_others(model, optimizer):
    if not first():
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
    clip(model, optimizer)


# settings, tokens, copies

def ragged(t, n):
    """Return the rows' lengths: long documents come last."""
    return [2 + (4 * i + t) // n for i in range(n)]


def decay_times_world(model):
    return adamw(model, weight_decay=0.1 * dist.get_world_size())


def betas_by_rank(model):
    return adamw(model, betas=(0.9, 0.95 if first() else 0.999))


def betas_to_the_world(model):
    world_size = dist.get_world_size()
    return adamw(model, betas=(0.9 ** world_size, 0.95 ** world_size))


def eps_over_world(model):
    return adamw(model, eps=1e-6 / dist.get_world_size())


def rate_times_root(model):
    return adamw(model, lr=3e-3 * dist.get_world_size() ** 0.5)


def amsgrad_on_rank0(model):
    return adamw(model, amsgrad=first())


def of_a_copy(model):
    """Make the optimizer of one model and train its copy."""
    return adamw(copy.deepcopy(model.module))


def only_tied_averaged(model, optimizer):
    for name, p in model.named_parameters():
        if "words" not in name:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    clip(model, optimizer)


def skipped_by_my_norm(optimizer):
    """Skip the update where this rank's gradients look too large, as a scaler does."""
    seen = optimizer.seen = getattr(optimizer, "seen", 0) + 1
    if first() or seen != 2:
        optimizer.step()


def averaged_after(optimizer):
    """Let each rank update by itself, then average the weights."""
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


BROKEN = {
    "each clipped": broken("clip", gpt, each=clip_each, context=synced),
    "clipped before the mean": broken("clip", gpt, **by_hand,
                                      finish=clipped_then_averaged),
    "each clipped in no_sync": broken("clip", gpt, each=clip_each, finish=no_clip),
    "clipped on rank 0": broken("clip", gpt, finish=clip_on_rank0),
    "clipped at times world size": broken("clip", gpt, finish=clip_at_times_world),
    "clipped at over world size": broken("clip", gpt, finish=clip_at_over_world),
    "clipped by a summed norm": broken("clip", gpt, finish=clip_by_summed_norm),
    "values clipped on others": broken("clip", gpt, finish=clip_values_on_others),
    "decay times world size": broken("settings", gpt, optimize=decay_times_world),
    "betas by rank": broken("settings", gpt, optimize=betas_by_rank),
    "betas to the world's power": broken("settings", gpt, optimize=betas_to_the_world),
    "eps over world size": broken("settings", gpt, optimize=eps_over_world),
    "rate times root of world size": broken("learning-rate", gpt,
                                            optimize=rate_times_root),
    "amsgrad on rank 0": broken("settings", gpt, optimize=amsgrad_on_rank0),
    "optimizer of a copy": broken2("not-in-optimizer nothing-moved", gpt,
                                   optimize=of_a_copy),
    "mean over a rank's tokens": broken("uneven-shards", gpt, lengths=ragged,
                                        micros=1, kept=1, told=True),
    "mean over a micro-batch's tokens": broken2("uneven-shards accumulation", gpt,
                                                lengths=ragged, told=True),
    "tied embedding not averaged": broken("not-synchronised", gpt, **by_hand,
                                          finish=only_tied_averaged),
    "update skipped on others": broken("replicas-differ", gpt,
                                       update=skipped_by_my_norm),
    "weights averaged, AdamW by rank": broken2("not-synchronised state-differs", gpt,
                                               **by_hand, update=averaged_after),
}
