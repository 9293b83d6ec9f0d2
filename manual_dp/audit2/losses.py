"""What does each term of torch's losses count in the end?

    hear      patches of torch's losses: each tells what backward brings it
    counted   from what was heard on all ranks, a finding or what is not known

A loss is a mean, or a sum, of terms. A mean of n terms into which backward brings s
counts each of them s / n times. In the mean over a minibatch all of these add up to 1.
"""

from contextlib import suppress
from unittest import mock

import torch
from torch.nn import functional as F

NAMES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
         "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
         "kl_div")


def hear(note):
    """Yield patches of torch's losses; note(terms, each) is called in backward."""
    for name in NAMES:
        yield mock.patch.object(F, name, _heard(getattr(F, name), note))


def _heard(real, note):
    def loss(input, target, *args, **kwargs):
        made = real(input, target, *args, **kwargs)
        how = kwargs.get("reduction", "mean")
        weighted = args or kwargs.get("weight") is not None
        with suppress(Exception):  # what is odd is not heard
            if made.requires_grad and not weighted and how in ("mean", "sum", "none"):
                counts = _terms(real.__name__, input, target, kwargs)
                made.register_hook(lambda s: _tell(note, s.detach(), counts, how))
        return made
    return loss


def _terms(name, input, target, kwargs):
    """Return which terms there are: a tensor of True and False."""
    if name in ("cross_entropy", "nll_loss"):
        if target.is_floating_point():
            return torch.ones(target.numel() // target.shape[-1], dtype=torch.bool)
        return target != kwargs.get("ignore_index", -100)
    return torch.ones(torch.broadcast_shapes(input.shape, target.shape),
                      dtype=torch.bool, device=input.device)


def _tell(note, s, counts, how):
    """Tell how many terms there are, and what each counts; None if not alike."""
    n = int(counts.sum())
    if how != "none" and n:
        note(n, float(s) / (n if how == "mean" else 1))
    elif how == "none" and s.shape == counts.shape:
        each = s[counts & (s != 0)]
        if len(each):
            alike = float(each.max() - each.min()) <= 1e-5 * float(each.abs().max())
            note(len(each), float(each.mean()) if alike else None)


def counted(terms, c, close):
    """Return (code, says) of the terms on each rank; code "" for what is not known.

    terms: a list of (n, each) of each rank. c: how often each rank's gradient counts.
    """
    told = [(n, each) for mine in terms for n, each in mine]
    if not all(terms) or any(each is None for _, each in told):
        return "", "whether the loss is divided rightly: its terms were not all heard"
    told = [(n, each * c[k]) for k, mine in enumerate(terms) for n, each in mine]
    total, counts = sum(n * each for n, each in told), [each for _, each in told]
    if max(counts) - min(counts) > close * max(counts):
        means = [n * each for n, each in told]
        if max(means) - min(means) <= close * max(means):
            sizes = [n for n, _ in told]
            return "uneven-shards", (f"means of {_few(sizes)} terms count alike: the "
                                     "largest has more terms and should count more")
        return "", ("whether the loss is divided rightly: its terms do not count alike:"
                    " right if these are their weights")
    if abs(total - 1) > close:
        return "", (f"whether the loss is divided rightly: its terms count {total:.4g} "
                    "times in a mean: right if this is their weight")
    return "", ""


def _few(numbers):
    return ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
