"""The rule about gradients: are they a single device's?

    gradients     the findings, those of the first step that has any

Three witnesses are asked. The loss, if it was given or explains the gradient at world
size 1, run once more on every rank's rows: then a single device's gradient is known. What came back to each
rank's parameters: did every rank apply one mixture of all of it? And the same code at
world size 1: is its step the same?
"""

import math
from dataclasses import replace

from manual_dp.audit import single
from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.hypotheses import CLOSE, RIGHT, explain, mixture
from manual_dp.audit.records import Evidence, each_step

# with one of these, that the step is another one has been explained
CAUSES = {"buffers", "modes", "frozen", "settings", "random-same", "state-differs"}
SHOWN = 3  # names of parameters in a line


@each_step
def gradients(notes, evidence):
    """Ask that every rank applies what a single device would apply."""
    if nothing := _nothing(notes):
        return nothing
    if not any(note.moved for note in notes):
        return []
    told = _by_loss(notes, evidence)
    if told == []:
        return []
    if stale := _stale(notes, evidence):
        return stale
    same, why = single.compared(notes, evidence)
    if told:
        if not same or _wrong_alone(told, notes, evidence):
            if told[0].code == "gradient" and told[0].parameter is None:
                told = _of_other_rows(notes, evidence) or told
            return _renamed(told, notes, evidence)
        evidence.remark("the gradient or update is not that of `loss` alone, but the "
                        "same as at world size 1")
    if same:
        return []
    heard = _by_ranks(notes, evidence)
    if heard:
        return _renamed(heard, notes, evidence)
    if same is False and not {f.code for f in evidence.findings} & CAUSES:
        return _renamed(single.unlike(notes, evidence), notes, evidence)
    if same is False:
        return []
    if heard is None:
        evidence.skip("whether gradients are averaged", why)
    else:
        evidence.skip("whether the loss is divided rightly", f"{why}; give `loss`")
    return []


def _nothing(notes):
    came = [sum(note.pieces) for note in notes if note.pieces]
    own = [note.own for note in notes if note.own is not None]
    for sketches in (came, [] if came else own):
        if len(sketches) == len(notes) and sum(float(s.norm()) for s in sketches) < 1e-14:
            return [finding("no-gradient", 0.0, "every gradient is 0: nothing can be "
                            "told from it")]
    return []


# by the loss

def _by_loss(notes, evidence):
    """Return findings, [] where all is right, None where it cannot be told."""
    t, alone = notes[0].t, evidence.alone
    if not (fits := _fits(evidence.steps, t)) or not _reliable(notes, evidence):
        return None
    [first] = _fits(alone, t) or _fits(alone, 0) or [None]
    base = first.numbers[0] if first and _right(first) else None
    found = _name(evidence, notes, fits, base)
    if found and _weights_averaged(notes):
        evidence.remark("each rank applied its own gradient, and the weights were "
                        "averaged: the same, for plain SGD")
        return []
    return found


def _reliable(notes, evidence):
    """Return whether forwards that draw were the same when they were run again."""
    return not any(note.draws for note in notes) or all(mixture(
        note.own, [sum(note.pieces)], evidence.close) for note in notes if note.pieces)


def _wrong_alone(told, notes, evidence):
    """Return whether world size 1 has this finding, too."""
    t = notes[0].t
    if t >= len(evidence.alone):
        return True
    few = Evidence([replace(evidence.runs[0], steps=[one[0] for one in evidence.alone])],
                   lr=evidence.lr)
    few.alone = evidence.alone
    found = _by_loss(evidence.alone[t], few) or []
    if notes[0].used is None and told[0].code == "stale" and told[0].number < 1 - CLOSE:
        return False  # a memory that an update by hand has
    return told[0].code in {f.code for f in found} - {"gradient"}


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
        evidence.skip("the size of the step", "no optimizer of torch's, and nothing to "
                      "compare with at world size 1; give `lr`")
        return []
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
    code, why, divisor = "factor", "", sum(sizes) / (times or 1e-300)
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


# by what came back to the ranks

def _of_other_rows(notes, evidence):
    """Return findings for gradients that the loss on a rank's rows does not explain."""
    if (heard := _by_ranks(notes, evidence)) == [] and not any(
            note.early or note.clips for note in notes):
        heard = [finding("labels", 0, "gradients are averaged, but they are not those of "
                         "the ranks' rows with the rows' own targets")]
    return heard

def _stale(notes, evidence):
    """Return the finding for a gradient that was there before this step's backward."""
    left = [note.left for note in notes if note.left is not None]
    came = [sum(note.pieces) for note in notes if note.pieces]
    if not left or len(came) < len(notes) or notes[0].used is None:
        return []
    who = [rank for rank, note in enumerate(notes) if note.left is not None]
    for note in notes:
        numbers = mixture(note.used, came + left, evidence.close)
        if (numbers is None or sum(numbers[len(came):]) < 1e-3
                or mixture(note.used, came, evidence.close)):
            return []
    return [finding("stale", sum(numbers[len(came):]), "the gradient of the step before "
                    f"is in it: it was not cleared on {ranks(who)}", who[0])]


def _by_ranks(notes, evidence):
    """Return findings, [] for one mixture of all gradients, None if it is not known."""
    if len(notes) < 2 or any(note.inside or not note.pieces for note in notes):
        return [] if len(notes) < 2 else None
    came = [replace(note, own=sum(note.pieces), weight=1, rows=[[0]], all_rows=[[0]],
                    size=len(notes), turned=None) for note in notes]
    reached = sum(note.own for note in came).norm(dim=1) > 0
    if any(bool((note.applied.norm(dim=1) > 0)[~reached].any()) for note in notes):
        return None  # some parameter's gradient was not heard
    if _evenly(came, evidence):
        return []
    if found := _micro_batches(notes, evidence):
        return found
    fits = explain(came)
    if notes[0].used is None and any(fit.hypothesis.code == "gradient" for fit in fits):
        return None  # an update by hand, with a memory
    if any(note.wraps not in ("", "ddp", "join") for note in notes):
        return None
    found = _name(evidence, came, fits, None) if not all(map(_right, fits)) or any(
        fit.parts for fit in fits) else []
    if not found and len({round(fit.numbers[0], 9) for fit in fits}) > 1:
        return [finding("factor", fits[-1].numbers[0] / fits[0].numbers[0], "ranks apply "
                        "different multiples of one gradient")]
    return found


def _evenly(came, evidence):
    """Return whether all ranks' gradients count alike, or as their rows do, on all."""
    numbers = [mixture(note.applied, [one.own for one in came if one.own.any()],
                       max(evidence.close, CLOSE)) for note in came]
    if None in numbers:
        return False
    first, sizes = numbers[0], [one.numbers for one in came if one.own.any()]
    by_rows = [number / size for number, size in zip(first, sizes) if size]
    return all(_alike([a / b for a, b in zip(other, first) if b] + [1.0])
               for other in numbers) and (_alike(first) or len(by_rows) == len(first)
                                          and _alike(by_rows))


def _alike(numbers, close=1e-6):
    return min(numbers) > 0 and max(numbers) - min(numbers) <= close * max(numbers)


def _micro_batches(notes, evidence):
    """Return the finding where micro-batches are treated differently, or []."""
    most = max(len(note.pieces) for note in notes)
    if most < 2 or len(notes) * most > 64:
        return []
    for rank, note in enumerate(notes):
        basis = [(one, m, piece) for one, other in enumerate(notes)
                 for m, piece in enumerate(other.pieces)]
        numbers = mixture(note.applied, [piece for *_, piece in basis], evidence.close)
        if numbers is None:
            return []
        of = {(one, m): number for (one, m, _), number in zip(basis, numbers)}
        tiny = 1e-6 * max(map(abs, numbers))
        alone = [m for m in range(most) if abs(of.get((rank, m), 0)) > tiny and all(
            abs(of.get((one, m), 0)) <= tiny for one in range(len(notes))
            if one != rank)]
        if 0 < len(alone) < most:
            return [finding("not-synchronised", len(alone), f"of micro-batch {alone[0] + 1}"
                            f" of {most} {ranks([rank])} applied its own gradient alone",
                            rank)]
        each = [of.get((rank, m), 0) for m in range(most)]
        if not alone and not _alike(each):
            return [finding("accumulation", max(each) / (min(each) or 1), "micro-batches "
                            "count " + ", ".join(f"{one:.4g}" for one in each)
                            + " times")]
    return []


def _renamed(found, notes, evidence):
    """Return the findings, by clipping where that explains them."""
    early = any(note.early for note in notes)
    parts = any(len(note.clips) > max(note.updates, 1) for note in notes)
    if found and (early or parts) and found[0].code in (
            "gradient", "counted-twice", "accumulation", "factor", "local"):
        where = ("before they are summed" if early and not parts else
                 "in each micro-batch")
        return [finding("clip", found[0].number, f"gradients are clipped {where}: "
                        + found[0].says, found[0].rank)]
    return found
