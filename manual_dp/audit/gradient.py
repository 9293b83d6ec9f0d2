"""The rule about gradients: are they a single device's, or those of world size 1?

    gradients     the findings, those of the first step that has any
    doubtful      whether findings need later steps of the run at world size 1

What the code does alone is what it means to do: a clipped gradient, a loss of its own,
an update by hand with a momentum. What it does on many ranks should be the same.
"""

import math
from dataclasses import replace

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.hypotheses import CLOSE, RIGHT, explain

SCALES = ("factor", "sum", "averaged-twice", "accumulation", "stale", "gradient")
SHOWN = 3  # names of parameters in a line


def gradients(evidence):
    """Return the findings about gradients, those of the first step that has any."""
    before = None
    for notes in evidence.steps:
        t = notes[0].t
        if any(note.own is None for note in notes):
            if any(note.moved for note in notes):
                return [finding("not-judged", 0, "the gradient: the model's input is "
                                "not rows of X", None, t)]
            before = None
            continue
        if sum(float(note.own.norm()) for note in notes) < 1e-14:
            return [finding("no-gradient", 0.0, "every gradient is 0: nothing can be "
                            "told from it", None, t)]
        if not all(note.moved for note in notes):
            return []
        if found := _of_step(evidence, notes, before):
            return found
        before = notes
    return []


def doubtful(findings, alone):
    """Return whether a finding may be the code's own way at world size 1 too."""
    unknown = alone.steps[0].own is None
    return any(f.code in SCALES and (f.step or unknown) for f in findings)


def _of_step(evidence, notes, before):
    alone, t = evidence.alone, notes[0].t
    single = alone and _explain_alone(alone, t)
    base = single or alone and _explain_alone(alone, 0)
    base = base.numbers[0] if base and _right(base) else None
    factor = base if evidence.lr is None else evidence.lr
    if notes[0].used is not None:
        factor = 1.0  # an optimizer of torch's was seen with its gradients
    found = _name(evidence, notes, explain(notes, before), factor, base)
    if found and _weights_averaged(notes):
        evidence.remark("each rank applied its own gradient, and the weights were "
                        "averaged: the same, for plain SGD")
        return []
    if found and single and _as_alone(notes, alone.steps[t], single):
        evidence.remark("the gradient or update is not that of `loss` alone, but the "
                        "same as at world size 1")
        return []
    return found


def _right(fit):
    return fit.hypothesis.code == RIGHT and not fit.parts


def _explain_alone(alone, t):
    """Return the fit of step t at world size 1, None if there is none."""
    steps = alone.steps[:t + 1]
    if len(steps) <= t or steps[t].own is None or not steps[t].moved:
        return None
    before = [steps[t - 1]] if t and steps[t - 1].own is not None else None
    return explain([steps[t]], before)[0]


def _as_alone(notes, note, single):
    """Return whether what was applied is as at world size 1: a memory, another loss."""
    if (notes[0].used is None) != (note.used is None):
        return False
    code = single.hypothesis.code
    if _right(single) or code == "labels":
        return False
    if code == "stale" and (notes[0].used is not None
                            or single.numbers[1] >= 1 - CLOSE):
        return False  # no momentum: gradients were not cleared
    far = max(float((other.applied - note.applied).norm()) for other in notes)
    return far <= CLOSE * float(note.applied.norm())


def _weights_averaged(notes):
    """Return whether the weights made the right step, whatever the optimizer used."""
    if not all(note.plain and note.kind == "SGD" for note in notes):
        return False
    rate = next(iter(notes[0].rates.values()))
    return all(_right(fit) and math.isclose(fit.numbers[0], rate, rel_tol=1e-6)
               for fit in explain([replace(note, used=None) for note in notes]))


def _name(evidence, notes, fits, factor, base):
    """Return the findings of a step; a remark where it is right in its own way.

    factor: what the right gradient is multiplied by here, None if unknown. base: the
    same at world size 1.
    """
    t = notes[0].t
    if any(fit.parts for fit in fits):
        return _of_parameters(t, fits, evidence.names)
    wrong = [rank for rank, fit in enumerate(fits) if not _right(fit)]
    if wrong:
        return [_accuse(t, fits, wrong, notes, factor)]
    return _scale(evidence, notes, [fit.numbers[0] for fit in fits], factor, base)


def _accuse(t, fits, wrong, notes, factor):
    """Return the finding that is the hypothesis of the first rank that is not right."""
    one = next((fit for fit in fits if fit.hypothesis.code == "one-rank"),
               fits[wrong[0]])
    code, everyone = one.hypothesis.code, len(wrong) == len(fits)
    if code == "one-rank":
        return _one_rank(t, fits, one.hypothesis.source, notes, factor)
    if code == "counted-twice":
        return _weighted(t, one.numbers)
    if code == "not-synchronised" and not everyone:
        right = [rank for rank in range(len(fits)) if rank not in wrong]
        return finding("not-sent-back", len(wrong), f"{ranks(right)} applied the sum, "
                       f"{ranks(wrong)} a gradient of their own", wrong[0], t)
    number, says = one.hypothesis.tell(ranks(wrong), one.numbers)
    return finding(code, number, says, None if everyone else wrong[0], t)


def _one_rank(t, fits, source, notes, factor):
    share = notes[source].weight / sum(note.weight for note in notes)
    if factor and len(notes) == 2 and math.isclose(fits[source].numbers[0] / factor,
                                                   share, rel_tol=1e-6):
        return finding("rank-left-out", 1, f"the sum leaves out rank {1 - source}",
                       None, t)
    return finding("one-rank", share, f"all ranks applied rank {source}'s gradient, "
                   f"{share:.3g} of the minibatch", source, t)


def _weighted(t, numbers):
    least = min(numbers)
    if least <= 0:
        return finding("gradient", least, f"ranks' gradients count {_list(numbers)} "
                       "times: one with the wrong sign", None, t)
    times = [number / least for number in numbers]
    if all(abs(x - round(x)) < 1e-6 for x in times):
        return finding("counted-twice", max(times), "ranks' gradients count "
                       f"{_list(times)} times", times.index(max(times)), t)
    return finding("gradient", max(times), "a row of ranks 0, 1, ... counts "
                   f"{_list(times)} times: clipped or weighted before the sum?", None,
                   t)


def _list(numbers):
    return ", ".join(f"{number:.4g}" for number in numbers)


def _of_parameters(t, fits, names):
    """Name the parameters that got something else than most."""
    found = {}
    for rank, fit in enumerate(fits):
        for i, hypothesis in fit.parts.items():
            what = (hypothesis.code, hypothesis.part)
            if hypothesis.code == "one-rank":
                what = ("not-synchronised", hypothesis.part)
            found.setdefault(what, {}).setdefault(i, []).append(rank)
    findings = []
    for (code, part), where in found.items():
        which = [names[i] for i in where]
        who = sorted({rank for some in where.values() for rank in some})
        shown = ", ".join(which[:SHOWN]) + (f" and {len(which) - SHOWN} more"
                                            if len(which) > SHOWN else "")
        findings.append(finding(code, len(which), f"{shown} {part} on {ranks(who)}",
                                who[0], t, which[0]))
    return findings


def _scale(evidence, notes, numbers, factor, base):
    """Return findings for gradients that are right but for a factor."""
    t, by_hand = notes[0].t, notes[0].used is None
    rest = [rank for rank, number in enumerate(numbers)
            if not math.isclose(number, numbers[0], rel_tol=1e-6)]
    if rest:
        times = numbers[rest[0]] / numbers[0]
        return [finding("rates-differ" if by_hand else "factor", times,
                        f"{ranks(rest)} took {times:.4g} times rank 0's step", rest[0],
                        t)]
    if factor is None:
        return [finding("not-judged", 0, "the size of the step: no optimizer of "
                        "torch's, and nothing to compare with at world size 1", None,
                        t)]
    number, pieces = numbers[0], len(notes[0].rows)
    times = number / factor
    if math.isclose(times, 1, rel_tol=1e-6):
        return []
    if not by_hand and base:
        times = number / base
        if math.isclose(times, 1, rel_tol=1e-6):
            if pieces > 1 and math.isclose(number, pieces, rel_tol=1e-6):
                return [_accumulated(t, pieces)]
            evidence.remark(f"the gradient is {number:.4g} times the mean loss's, at "
                            "world size 1 too: clipped, or another loss")
            return []
    return _times(t, times, notes)


def _times(t, times, notes):
    world_size, pieces = len(notes), len(notes[0].rows)
    sizes = [note.weight for note in notes]
    seen = sum(len(rows) for note in notes for rows in note.all_rows)
    if seen != notes[0].size and math.isclose(times, seen / notes[0].size,
                                              rel_tol=1e-6):
        return []  # rows were missed or repeated: said already
    words = f"the step is {times:.4g} times a single device's"
    for number, code in ((world_size, "sum"), (1 / world_size, "averaged-twice")):
        if world_size > 1 and math.isclose(times, number, rel_tol=1e-6):
            return [finding(code, times, f"{words}: the world size"
                            + (", inverted" if number < 1 else ""), None, t)]
    if pieces > 1 and math.isclose(times, pieces, rel_tol=1e-6):
        return [_accumulated(t, pieces)]
    divisor = sum(sizes) / times
    if abs(divisor - round(divisor)) < 1e-6 * divisor and divisor < 1e6:
        k = round(divisor)
        words += f": as if divided by {k} rows, of {sum(sizes)}"
        words += ", a shard's" if k in sizes else ""
    return [finding("factor", times, words, None, t)]


def _accumulated(t, pieces):
    return finding("accumulation", pieces, f"the gradient is {pieces} times a single "
                   f"device's: the number of micro-batches", None, t)
