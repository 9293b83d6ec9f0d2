"""What does each term of torch's losses count in the end?

    hear      patches of torch's losses: each tells what backward brings it
    counted   from what was heard on all ranks, a finding or what is not known

A mean of n terms into which backward brings s counts each of them s / n times. In the
mean over a minibatch all of these add up to 1.
"""

from contextlib import suppress
from unittest import mock

from torch.nn import functional as F

from manual_dp.audit.report import finding, numbers

NAMES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
         "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
UNKNOWN = "whether the loss is divided rightly: "


def hear(note):
    """Yield patches of torch's losses; note(terms, each) is called in backward."""
    for name in NAMES:
        yield mock.patch.object(F, name, _heard(getattr(F, name), note))


def _heard(real, note):
    def loss(input, target, *args, **kwargs):
        made = real(input, target, *args, **kwargs)
        how = kwargs.get("reduction", "mean")
        with suppress(Exception):  # what is odd is not heard
            if made.requires_grad and how in ("mean", "sum") and not args and (
                    kwargs.get("weight") is None):
                n = _terms(real.__name__, target, kwargs)
                made.register_hook(lambda s: note(n, float(s) / (
                    n if how == "mean" else 1)) if n else None)
        return made
    return loss


def _terms(name, target, kwargs):
    """Return how many terms a loss is a mean, or a sum, of."""
    if name not in ("cross_entropy", "nll_loss"):
        return target.numel()
    if target.is_floating_point():
        return target.numel() // target.shape[target.dim() > 1]
    return int((target != kwargs.get("ignore_index", -100)).sum())


def counted(terms, c, near):
    """Return (finding, why nothing is known), one of them or none.

    terms: a list of (n, each) of each rank. c: how often each rank's gradient counts.
    """
    told = [(n, each * c[k]) for k, mine in enumerate(terms) for n, each in mine]
    if not all(terms):
        return None, UNKNOWN + "no loss of torch.nn.functional was heard"
    total, counts = sum(n * each for n, each in told), [each for _, each in told]
    means = [n * each for n, each in told]
    if max(counts) - min(counts) > near * max(counts):
        if max(means) - min(means) <= near * max(means):
            sizes = numbers(n for n, _ in told)
            return finding("uneven-shards", f"means of {sizes} terms count alike: each "
                           "term should"), ""
        return None, UNKNOWN + ("its terms do not count alike: right if these are "
                                "their weights")
    if abs(total - 1) > near:
        return None, UNKNOWN + (f"losses count {total:.4g} times in a step: right if "
                                "this is their weight")
    return None, ""
