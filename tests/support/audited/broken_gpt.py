"""Broken programs: a GPT with AdamW, clipping, accumulation and no_sync; tokens.

`gpt` is right: two micro-batches a step, the first in no_sync, one clip, one update.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from tests.support.audited.broken_parts import (
    block,
    broken,
    broken2,
    dice,
    first,
    plain,
    wrapped,
)

WORDS, PAD = 13, -100


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.places = nn.Embedding(6, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True,
                                                norm_first=True, activation="gelu")
        self.norm = nn.LayerNorm(8)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        x = self.words(ids) + self.places.weight[:n]
        return self.norm(self.block(x, src_mask=mask)) @ self.words.weight.T


def make_gpt():
    torch.manual_seed(21)
    return GPT()


def adamw(model, lr=3e-3, **options):
    return torch.optim.AdamW(model.parameters(), lr=lr,
                             **{"betas": (0.9, 0.95), "weight_decay": 0.1, **options})


def full(t, n):
    return [6] * n


def mean_of_tokens(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(),
                           ignore_index=PAD)


def tokens(ids):
    return int((ids[:, 1:] != PAD).sum())


def waiting(model, last):
    """Return no_sync for all micro-batches but the last."""
    return contextlib.nullcontext() if last or model is None else model.no_sync()


def clip(model, optimizer):
    clip_grad_norm_(model.parameters(), 0.3)


def over_micros(l, micros):
    return l / micros


def gpt(wrap=wrapped, optimize=adamw, loss=mean_of_tokens, context=waiting,
        divide=over_micros, each=None, finish=clip, lengths=full, micros=2, kept=2,
        update=lambda optimizer: optimizer.step(), told=False, world_size=2):
    """Return audit's arguments for a GPT that accumulates micro-batches.

    each(model, optimizer): called after a micro-batch's backward; finish: before the
    update. kept: how many of the micro-batches are used. told: whether the audit is
    told the loss; the batch is then a pair, otherwise a dict.
    """
    def make_model():
        model = wrap(make_gpt())
        return model, optimize(model)

    def make_batch(t):
        ids = torch.randint(WORDS, (12, 6), generator=dice(t))
        words = torch.arange(6) < torch.tensor(lengths(t, 12))[:, None]
        labels = ids.masked_fill(~words, PAD)
        if told:
            return ids * words, labels
        return {"input_ids": ids * words, "labels": labels}

    def step_of_pair(model, optimizer, ids, labels):
        optimizer.zero_grad()
        ids, labels = block(ids), block(labels)
        pairs = list(zip(ids.chunk(micros), labels.chunk(micros)))
        for i, (x, y) in enumerate(pairs[:kept]):
            with context(model, i == len(pairs) - 1):
                divide(loss(model(x), y), micros).backward()
            if each:
                each(model, optimizer)
        finish(model, optimizer)
        update(optimizer)

    def step_of_dict(model, optimizer, batch):
        step_of_pair(model, optimizer, batch["input_ids"], batch["labels"])

    return {"make_model": make_model, "make_batch": make_batch,
            "step": step_of_pair if told else step_of_dict, "world_size": world_size,
            **({"loss": mean_of_tokens, "count": tokens} if told else {})}


# accumulation

def undivided(l, micros):
    return l


def divided_by_ranks(l, micros):
    return l / dist.get_world_size()


def divided_by_both(l, micros):
    return l / micros / dist.get_world_size()


def always_waiting(model, last):
    return model.no_sync()


def last_waits(model, last):
    """Mean to wait for the last, and wait with the last."""
    return model.no_sync() if last else contextlib.nullcontext()


def synced(model, last):
    return contextlib.nullcontext()


def others_always_wait(model, last):
    return contextlib.nullcontext() if last and first() else model.no_sync()


def step_each(model, optimizer):
    optimizer.step()
    optimizer.zero_grad()


def no_update(optimizer):
    pass


def clear_each(model, optimizer):
    """Clear after the first micro-batch what the second should add to."""
    if not hasattr(optimizer, "seen"):
        optimizer.seen = 0
    optimizer.seen += 1
    if optimizer.seen % 2:
        optimizer.zero_grad()


def sum_each(model, optimizer):
    """Sum after each micro-batch what the first has summed before."""
    for p in model.parameters():
        dist.all_reduce(p.grad)


def over_both_by_hand(model, optimizer):
    for p in model.parameters():
        p.grad /= dist.get_world_size()
    clip(model, optimizer)


def no_clip(model, optimizer):
    pass


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def unclipped(divide=over_micros, context=waiting, each=None, kept=2,
              update=lambda optimizer: optimizer.step(), world_size=2):
    """Return the GPT with SGD, no clip and a known loss."""
    return gpt(optimize=momentum, finish=no_clip, divide=divide, context=context,
               each=each, kept=kept, update=update, told=True, world_size=world_size)


by_hand = {"wrap": plain, "context": synced}

BROKEN = {
    "micro-batches not divided": broken("accumulation", unclipped, divide=undivided),
    "divided by ranks for micro-batches": broken2(
        "averaged-twice accumulation", unclipped, world_size=3,
        divide=divided_by_ranks),
    "divided by both under DDP": broken("averaged-twice", unclipped,
                                        divide=divided_by_both),
    "no_sync for all": broken("not-synchronised", gpt, context=always_waiting),
    "no_sync for the last": broken("not-synchronised", gpt, context=last_waits),
    "a step each": broken("accumulation", unclipped, each=step_each,
                          update=no_update, context=synced),
    "cleared between": broken("accumulation", unclipped, each=clear_each,
                              context=synced),
    "last micro-batch dropped": broken2("accumulation rows-missed", unclipped, kept=1,
                                        context=synced),
    "first summed twice": broken2("counted-twice accumulation", gpt, **by_hand,
                                  each=sum_each, finish=over_both_by_hand),
}
