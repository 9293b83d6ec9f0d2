"""Which gradient was it? Hypotheses, tried in sketches to the last digits.

    read_step     for each rank what it applied: a `Reading`
    plain_right   whether all ranks applied a multiple of the right gradient

A rank's `own` is the sum over its rows of the loss's gradient, so the right gradient,
a single device's, is the sum of all own / all rows. What a rank applied is compared
with that, with its own mean, with a mean of means, with other ranks', with sums that
leave some rank out, and with each of these plus the gradient of the step before. The
first that fits in every parameter is the answer; if none does, parameters are asked
one by one.
"""

from collections import namedtuple
from itertools import combinations

import torch

# label: which hypothesis; factor: applied / hypothesis; detail: ranks, numbers
# parts: {parameter: Reading} of those that differ, where parameters do
Reading = namedtuple("Reading", "label factor detail parts")
CLOSE = 1e-7   # relative; honest float64 is at 1e-13, the smallest planted bug at 1e-3
FLOOR = 1e-10  # of the whole gradient: a parameter that small may be rounding


def read_step(notes, before=None):
    """Return a Reading for each rank.

    notes: of all ranks, one step's: "used" or "step", "own", "rows". before: the step
    before's.
    """
    return [_read(rank, notes, before) for rank in range(len(notes))]


def plain_right(notes):
    """Return whether every rank applied a multiple of the right gradient."""
    return all(_factor(applied(note), _right(notes), _blur(note)) is not None
               for note in notes)


def applied(note):
    """Return the sketch of what the optimizer used or, without one, of the step."""
    return note["step"] if note["used"] is None else note["used"]


def _blur(note):
    # a step is a difference of weights: these have 16 digits
    return 1e-15 * note["blur"] if note["used"] is None else 0.0


def rows_of(note):
    """Return how many rows went into the step, or what else the loss is a mean of."""
    return note["weight"]


def _right(notes):
    return sum(note["own"] for note in notes) / sum(map(rows_of, notes))


def _read(rank, notes, before):
    used, blur = applied(notes[rank]), _blur(notes[rank])
    right = _right(notes)
    if used.norm() <= 1e-12 * right.norm() + blur:
        return Reading("zero", 0.0, None, {})
    targets = list(_targets(rank, notes, right))
    for label, target, detail in targets:
        factor = _factor(used, target, blur)
        if factor is not None:
            return Reading(label, factor, detail, {})
    if before:
        old = applied(before[rank])
        for _, target, _ in targets[:3]:
            numbers = _numbers(used, [target, old], blur)
            if numbers:
                return Reading("stale", numbers[0], numbers[1], {})
    numbers = _numbers(used, [note["own"] for note in notes], blur)
    if numbers and len(notes) > 1:
        return Reading("weights", 1.0, numbers, {})
    if notes[rank].get("turned") is not None:
        for i in (0, 1):
            turned = sum(note["turned"][i] for note in notes)
            factor = _factor(used, turned, blur)
            if factor is not None:
                return Reading("labels", factor, (1, -1)[i], {})
    return _by_parameter(used, right, targets, blur)


def _targets(rank, notes, right):
    """Yield (label, sketch, detail), what is more likely first."""
    counts = [rows_of(note) for note in notes]
    means = [note["own"] / max(n, 1) for note, n in zip(notes, counts)]
    world_size, everyone = len(notes), range(len(notes))
    yield "right", right, None
    if world_size == 1:
        return
    yield "means", sum(means) / world_size, None
    yield "own", means[rank], rank
    for other in everyone:
        if other != rank:
            yield "other", means[other], other
    sizes = range(world_size - 1, 1, -1) if world_size <= 6 else [world_size - 1]
    for size in sizes:
        for some in combinations(everyone, size):
            out = sorted(set(everyone) - set(some))
            yield "left out", sum(notes[r]["own"] for r in some) / sum(counts), out
            yield "left out", sum(means[r] for r in some) / world_size, out


def _by_parameter(used, right, targets, blur):
    """Let each parameter say by itself what it got, on the scale of the right ones."""
    factors = [_factor(used[i:i + 1], right[i:i + 1], blur) for i in range(len(used))]
    sizes = [float(row.norm()) for row in right]
    sure = [(size, f) for size, f, row in zip(sizes, factors, right)
            if f is not None and (row != 0).sum() > 1]
    if not sure:
        rest = used - (used * right).sum() / max(float((right * right).sum()),
                                                 1e-300) * right
        return Reading("unknown", float(rest.norm() / used.norm()), None, {})
    scale, parts = max(sure)[1], {}
    for i in range(len(used)):
        mine = used[i:i + 1] / scale
        far = float((mine - right[i:i + 1]).norm())
        if far <= CLOSE * sizes[i] + FLOOR * max(sizes):
            continue
        parts[i] = Reading("unknown", 0.0, None, {})
        if float(mine.norm()) <= CLOSE * sizes[i]:
            parts[i] = Reading("zero", 0.0, None, {})
            continue
        for label, target, detail in targets:
            factor = _factor(mine, target[i:i + 1], blur)
            single = int((target[i] != 0).sum()) < 2  # then any factor would do
            if factor is not None and (not single or label != "right"):
                parts[i] = Reading(label, factor, detail, {})
                break
    return Reading("parts" if parts else "right", scale, None, parts)


def _factor(used, target, blur):
    """Return c where used = c * target in every parameter, else None."""
    numbers = _numbers(used, [target], blur)
    return numbers[0] if numbers else None


def _numbers(used, basis, blur):
    """Return the numbers that make `used` of the sketches in `basis`, or None."""
    columns = torch.stack([b.flatten() for b in basis], 1)
    sizes = columns.norm(dim=0)
    if not bool((sizes > 0).all()) or not bool(used.isfinite().all()):
        return None
    found = torch.linalg.lstsq(columns / sizes, used.flatten(),
                               driver="gelsd").solution / sizes
    made = torch.stack([c * b for c, b in zip(found, basis)])
    rest = (used - made.sum(0)).norm(dim=1)
    allowed = (CLOSE * made.norm(dim=2).sum(0) + FLOOR * used.norm() + 10 * blur)
    return [float(c) for c in found] if bool((rest <= allowed).all()) else None
