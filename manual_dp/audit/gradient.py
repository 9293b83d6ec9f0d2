"""The rule about gradients: are they a single device's, or those of world size 1?

    gradients     the findings, those of the first step that has any

What the code does alone is what it means to do: a clipped gradient, a loss of its own,
an update by hand with a momentum. What it does on many ranks should be the same.
"""

import math
from dataclasses import replace

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.hypotheses import CLOSE, RIGHT, explain
from manual_dp.audit.records import each_step

SHOWN = 3  # names of parameters in a line


@each_step
def gradients(notes, evidence):
    """Ask that every rank applies what a single device would, or does, apply."""
    t, alone = notes[0].t, evidence.alone
    if any(note.own is None for note in notes):
        return [finding("not-judged", 0, "the gradient: the model's input is not rows "
                        "of X")] if any(note.moved for note in notes) else []
    if sum(float(note.own.norm()) for note in notes) < 1e-14:
        return [finding("no-gradient", 0.0, "every gradient is 0: nothing can be told "
                        "from it")]
    if not (fits := _fits(evidence.steps, t)):
        return []
    [single] = _fits(alone, t) or [None]
    [first] = [single] if single else _fits(alone, 0) or [None]
    base = first.numbers[0] if first and _right(first) else None
    found = _name(evidence, notes, fits, base)
    if found and _weights_averaged(notes):
        evidence.remark("each rank applied its own gradient, and the weights were "
                        "averaged: the same, for plain SGD")
        return []
    if found and single and _as_alone(notes, *alone[t], single):
        evidence.remark("the gradient or update is not that of `loss` alone, but the "
                        "same as at world size 1")
        return []
    return found


def _fits(steps, t):
    """Return every rank's `Fit` in step t, [] if it is not known or did not move."""
    there = [all(note.own is not None for note in notes) for notes in steps[:t + 1]]
    if len(there) <= t or not there[t] or not all(note.moved for note in steps[t]):
        return []
    return explain(steps[t], steps[t - 1] if t and there[t - 1] else None)


def _right(fit):
    return fit.hypothesis.code == RIGHT and not fit.parts


def _same(number, other):
    return math.isclose(number, other, rel_tol=1e-6)


def _as_alone(notes, note, single):
    """Return whether what was applied is as at world size 1: a memory, another loss."""
    by_hand, code = note.used is None, single.hypothesis.code
    if (notes[0].used is None) != by_hand or _right(single) or code == "labels":
        return False
    if code == "stale" and not (by_hand and single.numbers[1] < 1 - CLOSE):
        return False  # no momentum: gradients were not cleared
    far = max(float((other.applied - note.applied).norm()) for other in notes)
    return far <= CLOSE * float(note.applied.norm())


def _weights_averaged(notes):
    """Return whether the weights made the right step, whatever the optimizer used."""
    if not all(note.plain for note in notes):
        return False
    rate = next(iter(notes[0].rates.values()))
    return all(_right(fit) and _same(fit.numbers[0], rate)
               for fit in explain([replace(note, used=None) for note in notes]))


def _name(evidence, notes, fits, base):
    """Return the findings of a step; a remark where it is right in its own way.

    base: what the right gradient is multiplied by at world size 1, None if unknown.
    """
    factor = base if evidence.lr is None else evidence.lr  # and on these ranks
    if notes[0].used is not None:
        factor = 1.0  # an optimizer of torch's was seen with its gradients
    if any(fit.parts for fit in fits):
        return _of_parameters(fits, evidence.names)
    if not all(map(_right, fits)):
        return [_accuse(notes, fits, factor)]
    return _scale(evidence, notes, [fit.numbers[0] for fit in fits], factor, base)


def _accuse(notes, fits, factor):
    """Return the finding that is the hypothesis of the first rank that is not right."""
    right = [rank for rank, fit in enumerate(fits) if _right(fit)]
    wrong = [rank for rank in range(len(fits)) if rank not in right]
    one = next((fit for fit in fits if fit.hypothesis.code == "one-rank"),
               fits[wrong[0]])
    hypothesis, numbers = one.hypothesis, one.numbers
    if hypothesis.code == "one-rank":
        return _one_rank(fits, hypothesis.source, notes, factor)
    if hypothesis.code == "counted-twice":
        return _weighted(numbers)
    if hypothesis.code == "not-synchronised" and right:
        return finding("not-sent-back", len(wrong), f"{ranks(right)} applied the sum, "
                       f"{ranks(wrong)} a gradient of their own", wrong[0])
    number = numbers[-1] if hypothesis.number is None else hypothesis.number
    says = hypothesis.says.format(who=ranks(wrong), last=numbers[-1])
    return finding(hypothesis.code, number, says, wrong[0] if right else None)


def _one_rank(fits, source, notes, factor):
    share = notes[source].weight / sum(note.weight for note in notes)
    if factor and len(notes) == 2 and _same(fits[source].numbers[0] / factor, share):
        return finding("rank-left-out", 1, f"the sum leaves out rank {1 - source}")
    return finding("one-rank", share, f"all ranks applied rank {source}'s gradient, "
                   f"{share:.3g} of the minibatch", source)


def _weighted(numbers):
    """Return the finding for a sum that counts rank i's gradient numbers[i] times."""
    least = min(numbers)
    times = [number / least for number in numbers] if least > 0 else numbers
    most, words = max(times), ", ".join(f"{number:.4g}" for number in times)
    if least <= 0:
        return finding("gradient", least, f"ranks' gradients count {words} times: one "
                       "with the wrong sign")
    if all(abs(x - round(x)) < 1e-6 for x in times):
        return finding("counted-twice", most, f"ranks' gradients count {words} times",
                       times.index(most))
    return finding("gradient", most, f"a row of ranks 0, 1, ... counts {words} times: "
                   "clipped or weighted before the sum?")


def _of_parameters(fits, names):
    """Name the parameters that got something else than most."""
    found = {}
    for rank, fit in enumerate(fits):
        for i, one in fit.parts.items():
            code = "not-synchronised" if one.code == "one-rank" else one.code
            found.setdefault((code, one.part), []).append((names[i], rank))
    findings = []
    for (code, part), where in found.items():
        which, who = (list(dict.fromkeys(each)) for each in zip(*where))
        more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
        findings.append(finding(
            code, len(which), f"{', '.join(which[:SHOWN])}{more} {part} on "
            f"{ranks(who)}", who[0], parameter=which[0]))
    return findings


def _scale(evidence, notes, numbers, factor, base):
    """Return findings for gradients that are right but for a factor."""
    by_hand, number, pieces = notes[0].used is None, numbers[0], len(notes[0].rows)
    rest = [rank for rank, other in enumerate(numbers) if not _same(other, number)]
    if rest:
        times = numbers[rest[0]] / number
        return [finding("rates-differ" if by_hand else "factor", times,
                        f"{ranks(rest)} took {times:.4g} times rank 0's step", rest[0])]
    if factor is None:
        return [finding("not-judged", 0, "the size of the step: no optimizer of "
                        "torch's, and nothing to compare with at world size 1")]
    if _same(number, factor):
        return []
    times = number / (factor if by_hand else base or 1)
    if not _same(times, 1):
        return _times(times, pieces, notes)
    if _same(number, pieces):
        return [_accumulated(pieces)]
    evidence.remark(f"the gradient is {number:.4g} times the mean loss's, at world "
                    "size 1 too: clipped, or another loss")
    return []


def _times(times, pieces, notes):
    """Return the finding for a step that is `times` a single device's."""
    world_size, sizes = len(notes), [note.weight for note in notes]
    seen = sum(len(rows) for note in notes for rows in note.all_rows)
    if seen != notes[0].size and _same(times, seen / notes[0].size):
        return []  # rows were missed or repeated: said already
    code, why, divisor = "factor", "", sum(sizes) / times
    k = round(divisor)
    if _same(times, world_size):
        code, why = "sum", ": the world size"
    elif _same(times, 1 / world_size):
        code, why = "averaged-twice", ": the world size, inverted"
    elif _same(times, pieces):
        return [_accumulated(pieces)]
    elif _same(divisor, k) and divisor < 1e6:
        why = f": as if divided by {k} rows, of {sum(sizes)}"
        why += ", a shard's" if k in sizes else ""
    return [finding(code, times, f"the step is {times:.4g} times a single device's"
                    + why)]


def _accumulated(pieces):
    return finding("accumulation", pieces, f"the gradient is {pieces} times a single "
                   "device's: the number of micro-batches")
