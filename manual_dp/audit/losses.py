"""Hear torch's losses: how much does each term of a loss count in a backward?

A mean over n terms, into which backward brings the number s, counts each term s / n
times. If all ranks' terms count alike, and 1 / n of all terms, the loss is divided as
one device divides it. A loss is heard where torch.nn.functional computes it, so that
torch's modules and a script's own calls are the same.
"""

import inspect
from contextlib import suppress
from functools import wraps
from unittest import mock

import torch
from torch.nn import functional as F

HEARD = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)
SOME = ", some of its terms"  # ends the name of a loss that a script masks itself
NAMED = (  # these are told by name alone
    "cosine_embedding_loss",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "kl_div",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)


def hear(note):
    """Yield patches of torch's losses.

    note(name, n, each) is called in the backward of a loss that is heard: it has n
    terms, and each counts so much. note(name) is called for a loss that is not.
    """
    for name in HEARD:
        yield mock.patch.object(F, name, _heard(getattr(F, name), name, note))
    for name in NAMED:
        yield mock.patch.object(F, name, _named(getattr(F, name), name, note))


def _named(real, name, note):
    @wraps(real)
    def loss(*args, **kwargs):
        note(name)
        return real(*args, **kwargs)

    return loss


def _heard(real, name, note):
    signature = inspect.signature(real)

    @wraps(real)
    def loss(*args, **kwargs):
        made = real(*args, **kwargs)
        with suppress(Exception):  # a loss that is called in an odd way is not heard
            if made.requires_grad:
                asked = signature.bind(*args, **kwargs).arguments
                shares = term_weights(name, asked["target"], asked)
                how = asked.get("reduction", "mean")
                made.register_hook(lambda s: _note(s, name, shares, how, note))
        return made

    return loss


def _note(s, name, shares, how, note):
    """Note a loss into which backward brings s; shares: what each term weighs in it."""
    with suppress(Exception):
        if how != "none":
            n = float(shares.sum())
            if n:
                note(name, n, float(s) / (n if how == "mean" else 1))
            return
        shares = shares.expand(s.shape) if shares.dim() == s.dim() else shares
        each = s[shares != 0]
        if not bool(each.all()):  # a mask of the script's own, or its largest terms
            name, each = name + SOME, each[each != 0]
        weighted = bool(((shares != 0) & (shares != 1)).any())
        if weighted or float(each.max() - each.min()) > 1e-4 * float(each.abs().max()):
            note(f"{name} with reduction='none' and weights")
        else:
            note(name, float(len(each)), float(each[0]))


def term_weights(name, target, asked):
    """Return what each term of a loss weighs: a tensor of 1, if nothing is asked."""
    if name not in ("cross_entropy", "nll_loss"):
        return torch.ones_like(target, dtype=torch.float64)
    if target.is_floating_point():  # a probability for each class
        rows = target.movedim(1, -1) if target.dim() > 1 else target
        return torch.ones(rows.shape[:-1], dtype=torch.float64)
    counted = (target != asked.get("ignore_index", -100)).double()
    weight = asked.get("weight")
    if weight is None:
        return counted
    return weight.double()[target.clamp(0, len(weight) - 1)] * counted
