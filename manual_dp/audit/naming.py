"""From what ranks applied, as it was explained, to findings.

    named      the findings of a step whose gradients `loss` knows
    accused    the same where it is only known what came back to each rank
"""

import math

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.hypotheses import RIGHT, ZERO, by_world_size

SHOWN = 3  # names of parameters in a line


def named(evidence, notes, fits, base):
    """Return the findings of a step; a remark where it is right in its own way.

    base: what the right gradient is multiplied by at world size 1, None if unknown.
    """
    factor = base if evidence.lr is None else evidence.lr  # and on these ranks
    if notes[0].used is not None:
        factor = 1.0  # an optimizer of torch's was seen with its gradients
    wrong = [rank for rank, fit in enumerate(fits) if not right(fit)]
    if any(fit.parts for fit in fits) and notes[0].reduced and len(wrong) < len(fits):
        return [_not_sent_back(wrong, len(fits))]
    if any(fit.parts for fit in fits):
        return _of_parameters(fits, evidence.names)
    if not all(map(right, fits)):
        return [_accuse(notes, fits, factor)]
    return _scale(evidence, notes, [fit.numbers[0] for fit in fits], factor, base)


def _accuse(notes, fits, factor):
    """Return the finding that is the hypothesis of the first rank that is not right."""
    fine = [rank for rank, fit in enumerate(fits) if right(fit)]
    wrong = [rank for rank in range(len(fits)) if rank not in fine]
    one = next((fit for fit in fits if fit.hypothesis.code == "one-rank"),
               fits[wrong[0]])
    hypothesis, numbers = one.hypothesis, one.numbers
    if hypothesis.code == "one-rank":
        return _one_rank(fits, hypothesis.source, notes, factor)
    if hypothesis.code == "counted-twice":
        return _weighted(numbers)
    if fine and (hypothesis.code == "not-synchronised" or hypothesis.code == "gradient"
                 and notes[wrong[0]].reduced):
        return _not_sent_back(wrong, len(fits))
    number = numbers[-1] if hypothesis.number is None else hypothesis.number
    says = hypothesis.says.format(who=ranks(wrong), last=numbers[-1])
    return finding(hypothesis.code, number, says, wrong[0] if fine else None)


def _not_sent_back(wrong, world_size):
    fine = [rank for rank in range(world_size) if rank not in wrong]
    return finding("not-sent-back", len(wrong), f"{ranks(fine)} applied the sum, "
                   f"{ranks(wrong)} another gradient", wrong[0])


def _one_rank(fits, source, notes, factor):
    share = notes[source].weight / sum(note.weight for note in notes)
    if factor and len(notes) == 2 and same(fits[source].numbers[0] / factor, share):
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
            code, part = one.code, one.part
            if one is ZERO and any(other.parts.get(i) is not ZERO for other in fits):
                code, part = "not-synchronised", "got no gradient"  # others' did
            code = "not-synchronised" if code == "one-rank" else code
            found.setdefault((code, part), []).append((names[i], rank))
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
    rest = [rank for rank, other in enumerate(numbers) if not same(other, number)]
    if rest:
        times = numbers[rest[0]] / number
        return [finding("rates-differ" if by_hand else "factor", times,
                        f"{ranks(rest)} took {times:.4g} times rank 0's step", rest[0])]
    if factor is None:
        evidence.skip("the size of the step", "no optimizer of torch's, and nothing to "
                      "compare with at world size 1; give `lr`")
        return []
    if same(number, factor):
        return []
    times = number / (factor if by_hand else base or 1)
    if not same(times, 1):
        return _times(times, pieces, notes)
    if same(number, pieces):
        return [_accumulated(pieces)]
    evidence.remark(f"the gradient is {number:.4g} times the mean loss's, at world "
                    "size 1 too: clipped, or another loss")
    return []


def _times(times, pieces, notes):
    """Return the finding for a step that is `times` a single device's."""
    sizes = [note.weight for note in notes]
    seen = sum(len(rows) for note in notes for rows in note.all_rows)
    if seen != notes[0].size and same(times, seen / notes[0].size):
        return []  # rows were missed or repeated: said already
    code, why = by_world_size(times, len(notes))
    divisor = sum(sizes) / (times or 1e-300)
    k = round(divisor)
    if not code and same(times, pieces):
        return [_accumulated(pieces)]
    if not code and same(divisor, k) and divisor < 1e6:
        why = f": as if divided by {k} rows, of {sum(sizes)}"
        why += ", a shard's" if k in sizes else ""
    return [finding(code or "factor", times, f"the step is {times:.4g} times a single "
                    f"device's{why}")]


def _accumulated(pieces):
    return finding("accumulation", pieces, f"the gradient is {pieces} times a single "
                   "device's: the number of micro-batches")


def right(fit):
    """Return whether this is a multiple of the right gradient, in all parameters."""
    return fit.hypothesis.code == RIGHT and not fit.parts


def same(number, other):
    """Return whether two numbers are equal but for rounding."""
    return math.isclose(number, other, rel_tol=1e-6)


def accused(evidence, notes, fits):
    """Return the findings of a step in which every rank's `own` is what came back."""
    if not all(map(right, fits)):
        return named(evidence, notes, fits, None)
    numbers = [fit.numbers[0] for fit in fits]
    return [] if all(same(number, numbers[0]) for number in numbers) else [
        finding("factor", numbers[-1] / numbers[0], "ranks apply different multiples "
                "of one gradient")]
