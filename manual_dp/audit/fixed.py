"""Give fixed numbers where torch would draw: then rows and ranks do not matter.

    fixed    what a call gives in the place of drawn numbers; None if it is not known
    DRAWN    by name, what each of torch's functions gives

A flip, noise, a mask: each row gets the same ones, on ranks and on one device. So what
is made of a row is the same there, and two runs of a script can be compared.
"""

import torch

PART = 0.3  # of the way from the least to the most; as much is a deviation from a mean


def fixed(name, made, args, kwargs):
    """Return what stands in the place of `made`, which torch drew; None if unknown.

    args, kwargs: of the call. A tensor that was drawn in place is filled.
    """
    give = DRAWN.get(name)
    if give is None or not torch.is_tensor(made) or made.requires_grad:
        return None
    with torch.no_grad():
        return give(made, *args, **kwargs)


def _uniform(made, *_, **__):
    return made.fill_(PART)


def _between(made, _, low=0.0, high=1.0, **named):
    low, high = named.get("from", low), named.get("to", high)
    return made.fill_(low + PART * (high - low))


def _around(made, _, mean=0.0, std=1.0, **__):
    return made.fill_(mean + PART * std)


def _normal(made, mean, std=1.0, *_, **__):
    return made.copy_(mean + PART * std)


def _whole(made, *bounds, low=0, high=None, **__):
    numbers = [one for one in bounds if isinstance(one, int)]
    if high is None and numbers:
        *lows, high = numbers
        low = (lows or [low])[0]
    return None if high is None else made.fill_(low + int(PART * (high - low)))


def _order(made, *_, **__):
    return made.copy_(torch.arange(len(made)))


def _likely(made, p, *_, **__):
    return made.copy_(p > 0.5)


def _filled(made, _, p=0.5, **__):
    return made.copy_(torch.as_tensor(p) > 0.5)


def _first(made, weights, *_, **__):
    return made.copy_(weights.topk(made.shape[-1]).indices)


def _one(made, *_, **__):
    return made.fill_(1)


DRAWN = {
    "rand": _uniform, "rand_like": _uniform, "uniform_": _between, "randn": _uniform,
    "randn_like": _uniform, "normal_": _around, "normal": _normal, "randint": _whole,
    "randint_like": lambda made, _, *bounds, **more: _whole(made, *bounds, **more),
    "randperm": _order, "bernoulli": _likely, "bernoulli_": _filled,
    "multinomial": _first, "exponential_": _one, "random_": _one}
