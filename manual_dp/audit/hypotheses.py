"""Which gradient was it? Hypotheses, tried in sketches to the last digits.

    Hypothesis     a gradient that a rank may have applied, and what is then found
    Fit            the hypothesis that fits what a rank applied, with its numbers
    explain        a `Fit` for each rank
    hypotheses     all that are tried for a rank, in this order
    distance       how far a hypothesis is from what was applied
    single_device  the right gradient
    right_on_all   whether all ranks applied a multiple of it
    mixture        the numbers that make one sketch of some others, if any do
    by_world_size  whether a factor is the world size: a sum, or averaged twice

A rank's `own` is the sum over its rows of the loss's gradient, so the right gradient,
a single device's, is the sum of all own / all rows. What a rank applied is compared
with that, with its own mean, with a mean of means, with other ranks', with sums that
leave some rank out, and with each of these plus the gradient of the step before. The
first that fits in every parameter is the answer; if none does, parameters are asked
one by one.
"""

import math
from collections import namedtuple
from dataclasses import replace
from itertools import combinations

import torch

from manual_dp.audit.catalogue import ranks

CLOSE = 1e-7   # relative; honest float64 is at 1e-13, the smallest planted bug at 1e-3
FLOOR = 1e-10  # of the whole gradient: a parameter that small may be rounding

# code, says, number: of the finding; says, of {who} and the {last} of the fit's numbers
# basis: sketches: what was applied is a number times each, added up
# part: what is said of a parameter that has another one than most
# source: the rank that it comes from
Hypothesis = namedtuple("Hypothesis", "code basis says part number source",
                        defaults=("", "", None, None))
# numbers: what the sketches of `basis` are multiplied by
# parts: {parameter: Hypothesis} of those that have another one, where parameters do
Fit = namedtuple("Fit", "hypothesis numbers parts", defaults=({},))

RIGHT = "factor"  # its code: right but for a factor
ALONE = "{who} applied the gradient of their own rows alone"
ZERO = Hypothesis("nothing-moved", [], "{who}: the gradient or step is 0",
                  "did not move")
UNKNOWN = Hypothesis("gradient", [], "{who}: {last:.1e} of the gradient is not "
                     "explained", "got a gradient that nothing explains")


def explain(notes, before=None):
    """Return a Fit for each rank.

    notes: of all ranks, one step's. before: the step before's, or None.
    """
    return [_explain(rank, notes, before) for rank in range(len(notes))]


def right_on_all(notes):
    """Return whether every rank applied a multiple of the right gradient."""
    return all(_numbers(few[rank].applied, [single_device(few)], few[rank].noise,
                        few[rank].close)
               for rank in range(len(notes)) for few in [held(rank, notes)])


def single_device(notes):
    """Return a single device's gradient: all ranks' sums, over the number of rows."""
    return sum(note.own for note in notes) / sum(note.weight for note in notes)


def hypotheses(rank, notes, before=None):
    """Return what `rank` may have applied, likely ones first: `Hypothesis`es."""
    whole = list(of_this_step(rank, notes))
    return [*whole, *_of_more(rank, notes, before, whole)]


def distance(used, basis):
    """Return how far `used` is from the nearest sum of numbers times `basis`.

    As a part of `used`: 0 if some numbers make exactly it, 1 if none are of any help.
    """
    if (numbers := _nearest(used, basis)) is None:
        return math.inf
    made = sum(number * one for number, one in zip(numbers, basis))
    return float((used - made).norm() / used.norm())


def held(rank, notes):
    """Return the notes with the parameters alone that this rank's optimizers hold."""
    mine = sorted(notes[rank].rates)
    if notes[rank].used is None or not mine or len(mine) == len(notes[rank].used):
        return notes

    def part(sketch):
        return None if sketch is None else sketch[mine]
    return [replace(
        note, own=part(note.own), used=part(note.used), step=part(note.step),
        turned=note.turned and {how: part(sketch) for how, sketch in
                                note.turned.items()},
        rates=dict(enumerate(note.rates.values()))) for note in notes]


def _explain(rank, notes, before):
    mine = sorted(notes[rank].rates)
    few = held(rank, notes)
    if few is not notes:
        fit = _explain(rank, few, before and held(rank, before))
        return fit._replace(parts={mine[i]: one for i, one in fit.parts.items()})
    used, noise, right = notes[rank].applied, notes[rank].noise, single_device(notes)
    close = notes[rank].close
    if used.norm() <= 1e-12 * right.norm() + noise:
        return Fit(ZERO, [0.0])
    for hypothesis in hypotheses(rank, notes, before):
        if numbers := _numbers(used, hypothesis.basis, noise, close):
            return Fit(hypothesis, numbers)
    return _by_parameter(used, right, list(of_this_step(rank, notes)), noise,
                         close, len(notes))


def of_this_step(rank, notes):
    """Yield what a parameter can be asked by itself, likely ones first."""
    yield Hypothesis(RIGHT, [single_device(notes)], part="got another multiple than "
                     "the rest")
    counts, world_size = [note.weight for note in notes], len(notes)
    means = [note.own / max(n, 1) for note, n in zip(notes, counts)]
    if world_size == 1:
        return
    yield _uneven(notes, [sum(means) / world_size])
    yield Hypothesis("not-synchronised", [means[rank]], ALONE, "got each rank's own "
                     "gradient", source=rank)
    for other in range(world_size):
        if other != rank:
            yield Hypothesis("one-rank", [means[other]], ALONE, "got each rank's own "
                             "gradient", source=other)
    for some in _subsets(world_size):
        out = sorted(set(range(world_size)) - set(some))
        for basis in ([sum(notes[r].own for r in some) / sum(counts)],
                      [sum(means[r] for r in some) / world_size]):
            yield Hypothesis("rank-left-out", basis, f"the sum leaves out {ranks(out)}",
                             "got a sum without a rank", len(out))


def _uneven(notes, basis):
    counts = [note.weight for note in notes]
    share = max(counts) * len(counts) / sum(counts)
    return Hypothesis("uneven-shards", basis, f"a mean of means: shards of {counts} "
                      f"{_terms(notes)} count alike, the largest should count "
                      f"{share:.4g} times", "got a mean of means", share)


def _subsets(world_size):
    """Yield ranks that may be in a sum: all but one; of few ranks, any two and more."""
    sizes = range(world_size - 1, 1, -1) if world_size <= 6 else [world_size - 1]
    for size in sizes:
        yield from combinations(range(world_size), size)


def _of_more(rank, notes, before, whole):
    """Yield what is asked of all parameters together: sums, and shifted rows."""
    for hypothesis in whole[:3] if before and before[rank].applied is not None else ():
        yield Hypothesis(
            "stale", [*hypothesis.basis, before[rank].applied], "{who}: the "
            "gradient of the step before is in it {last:.4g} times")
    if len(notes) > 1:
        yield Hypothesis("counted-twice", [note.own for note in notes])
    for how in notes[rank].turned or ():
        # targets that are the rows' own on all ranks are no others
        if all(how in (note.turned or ()) for note in notes) and not all(
                torch.equal(note.turned[how], note.own) for note in notes):
            yield Hypothesis("labels", [sum(note.turned[how] for note in notes)],
                             f"{{who}}: the gradient of targets {how}", number=1)


def by_world_size(times, world_size, close=1e-6):
    """Return the code and the reason if `times` is a matter of the world size.

    times: how often the gradient is the right one. Elsewhere both are empty.
    """
    for code, number, why in (("sum", world_size, ": the world size"),
                              ("averaged-twice", 1 / world_size,
                               ": the world size, inverted")):
        if world_size > 1 and math.isclose(times, number, rel_tol=close):
            return code, why
    return "", ""


def _multiple(one, number, world_size):
    """Return the hypothesis by another name if its number says more."""
    code, _ = by_world_size(number, world_size)
    if one.code != RIGHT or not code:
        return one
    words = {"sum": "the ranks' sum", "averaged-twice": "the mean, divided"}[code]
    return one._replace(code=code, part=f"got {words}")


def _by_parameter(used, right, whole, noise, close, world_size):
    """Let each parameter say by itself what it got, on the scale of the right ones."""
    sizes, places = right.norm(dim=1).tolist(), range(len(right))
    # of a single number any factor is right
    several = [int((row != 0).sum()) > 1 for row in right]
    sure = [(sizes[i], numbers[0]) for i in places if several[i]
            and (numbers := _numbers(used[i:i + 1], [right[i:i + 1]], noise, close))]
    scale, parts = max(sure)[1] if sure else 1.0, {}
    if any(math.isclose(number, 1, rel_tol=close) for _, number in sure):
        scale = 1.0  # what is right as it stands needs no other to be compared with
    for i in places:
        mine = used[i:i + 1] / scale
        if float((mine - right[i]).norm()) > close * sizes[i] + FLOOR * max(sizes):
            parts[i] = next((_multiple(one, numbers[0], world_size)
                             for one in whole[not several[i]:] if (numbers := _numbers(
                                 mine, [one.basis[0][i:i + 1]], noise, close))),
                            UNKNOWN)
            if float(mine.norm()) <= close * sizes[i]:
                parts[i] = ZERO
    told = [one for i, one in parts.items() if several[i]]
    parts |= {i: told[0] for i, one in parts.items()  # which says nothing by itself
              if told and not several[i] and one is not ZERO}
    strange = sum(float(used[i].norm()) ** 2 for i in places if parts.get(i) is UNKNOWN)
    if not sure and strange > float(used.norm()) ** 2 / 4:
        size = right.square().sum().clamp(min=1e-300)
        rest = used - (used * right).sum() / size * right
        return Fit(UNKNOWN, [float(rest.norm() / used.norm())])
    return Fit(whole[0], [scale], parts)


def _terms(notes):
    """Return the word for what a mean loss is a mean of."""
    rows = all(note.weight == sum(map(len, note.rows)) for note in notes)
    return "rows" if rows else "terms of the loss"


def _nearest(used, basis):
    """Return numbers: their sum of products with `basis` is nearest to `used`, or None.

    None where a sketch in `basis` is 0, or `used` is not finite.
    """
    columns = torch.stack([b.flatten() for b in basis], 1)
    sizes = columns.norm(dim=0)
    if not bool((sizes > 0).all()) or not bool(used.isfinite().all()):
        return None
    found = torch.linalg.lstsq(columns / sizes, used.flatten(), driver="gelsd")
    return (found.solution / sizes).tolist()


def mixture(used, basis, close=CLOSE):
    """Return the numbers that make `used` of the sketches in `basis`, or None."""
    return _numbers(used, basis, 0.0, close)


def _numbers(used, basis, noise, close=CLOSE):
    if (numbers := _nearest(used, basis)) is None:
        return None
    made = torch.stack([number * b for number, b in zip(numbers, basis)])
    rest = (used - made.sum(0)).norm(dim=1)
    allowed = close * made.norm(dim=2).sum(0) + FLOOR * used.norm() + 10 * noise
    return numbers if bool((rest <= allowed).all()) else None
