"""Give the mistake in a gradient its name: from `Reading`s to findings.

    name_step   the findings of one step's readings
    scale       those of gradients that are right but for a factor
"""

import math

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.gradient import rows_of

CODES = {"zero": "nothing-moved", "own": "not-synchronised", "other": "one-rank",
         "left out": "rank-left-out", "means": "uneven-shards", "stale": "stale",
         "labels": "labels", "unknown": "gradient", "right": "factor"}
SHOWN = 3  # names of parameters in a line


def name_step(t, readings, notes, names, expected):
    """Return (findings, remarks) of step t.

    readings, notes: of every rank. expected: a dict; "factor", the factor that a right
    gradient has here, None if unknown; "alone": the one at world size 1, or None.
    """
    labels = [reading.label for reading in readings]
    if all(label == "right" for label in labels):
        return scale(t, [reading.factor for reading in readings], notes, expected)
    if "parts" in labels:
        return _parts(t, readings, names), []
    wrong = [rank for rank, label in enumerate(labels) if label != "right"]
    if any(label == "other" for label in labels):
        return [_one_rank(t, readings, notes, expected)], []
    label = labels[wrong[0]]
    if label == "own" and len(wrong) < len(labels):
        right = [rank for rank in range(len(labels)) if rank not in wrong]
        return [finding("not-sent-back", len(wrong), f"{ranks(right)} applied the sum, "
                        f"{ranks(wrong)} a gradient of their own", wrong[0], t)], []
    if label == "weights":
        return [_weights(t, readings[wrong[0]].detail, notes)], []
    number, says = _says(label, readings[wrong[0]], wrong, notes)
    everyone = len(wrong) == len(labels)
    return [finding(CODES[label], number, says, None if everyone else wrong[0], t)], []


def _says(label, reading, wrong, notes):
    who, factor = ranks(wrong), reading.factor
    sizes = [rows_of(note) for note in notes]
    if label == "zero":
        return 0.0, f"{who}: the gradient or step is 0"
    if label == "own":
        return factor, f"{who} applied the gradient of their own rows alone"
    if label == "left out":
        return len(reading.detail), f"the sum leaves out {ranks(reading.detail)}"
    if label == "means":
        share = max(sizes) * len(sizes) / sum(sizes)
        return share, (f"a mean of means: shards of {sizes} rows count alike, the "
                       f"largest should count {share:.4g} times")
    if label == "stale":
        return reading.detail, (f"{who}: the gradient of the step before is in it "
                                f"{reading.detail:.4g} times")
    if label == "labels":
        return reading.detail, (f"{who}: the gradient of targets that are shifted by "
                                f"{reading.detail} row against X")
    return factor, f"{who}: {factor:.1e} of the gradient is not explained"


def _one_rank(t, readings, notes, expected):
    source = next(r.detail for r in readings if r.label == "other")
    share = rows_of(notes[source]) / sum(map(rows_of, notes))
    base = expected["factor"]
    if base and len(notes) == 2 and math.isclose(readings[source].factor / base, share,
                                                 rel_tol=1e-6):
        return finding("rank-left-out", 1, f"the sum leaves out rank {1 - source}",
                       None, t)
    return finding("one-rank", share, f"all ranks applied rank {source}'s gradient, "
                   f"{share:.3g} of the minibatch", source, t)


def _weights(t, numbers, notes):
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


def _parts(t, readings, names):
    """Name the parameters that got something else than most."""
    found = {}
    for rank, reading in enumerate(readings):
        for i, part in reading.parts.items():
            label = "own" if part.label == "other" else part.label
            found.setdefault(label, {}).setdefault(i, []).append(rank)
        if reading.label not in ("parts", "right"):
            found.setdefault(reading.label, {})
    findings = []
    for label, where in found.items():
        which = [names[i] for i in where]
        who = sorted({rank for some in where.values() for rank in some})
        shown = ", ".join(which[:SHOWN]) + (f" and {len(which) - SHOWN} more"
                                            if len(which) > SHOWN else "")
        what = {"zero": "did not move", "own": "got each rank's own gradient",
                "unknown": "got a gradient that nothing explains",
                "right": "got another multiple than the rest"}.get(label, label)
        if which:
            findings.append(finding(CODES[label], len(which), f"{shown} {what} on "
                                    f"{ranks(who)}", who[0], t, which[0]))
    return findings


def scale(t, factors, notes, expected):
    """Return (findings, remarks) for gradients that are right but for a factor."""
    rest = [rank for rank, c in enumerate(factors)
            if not math.isclose(c, factors[0], rel_tol=1e-6)]
    by_hand = notes[0]["used"] is None
    if rest:
        times = factors[rest[0]] / factors[0]
        return [finding("rates-differ" if by_hand else "factor", times,
                        f"{ranks(rest)} took {times:.4g} times rank 0's step", rest[0],
                        t)], []
    if expected["factor"] is None:
        return [finding("not-judged", 0, "the size of the step: no optimizer of "
                        "torch's, and nothing to compare with at world size 1", None,
                        t)], []
    c, alone, pieces = factors[0], expected["alone"], len(notes[0]["rows"])
    times = c / expected["factor"]
    if math.isclose(times, 1, rel_tol=1e-6):
        return [], []
    if not by_hand and alone and math.isclose(c, alone, rel_tol=1e-6):
        if pieces > 1 and math.isclose(c, pieces, rel_tol=1e-6):
            return [_accumulated(t, pieces)], []
        return [], [f"the gradient is {c:.4g} times the mean loss's, at world size 1 "
                    "too: clipped, or another loss"]
    return _times(t, times if by_hand or not alone else c / alone, notes, expected), []


def _times(t, times, notes, expected):
    world_size, pieces = len(notes), len(notes[0]["rows"])
    rows, sizes = sum(map(rows_of, notes)), [rows_of(note) for note in notes]
    seen = sum(len(rows) for note in notes for rows in note["all_rows"])
    if math.isclose(times, seen / notes[0]["size"], rel_tol=1e-6) and seen != \
            notes[0]["size"]:
        return []  # rows were missed or repeated: said already
    words = f"the step is {times:.4g} times a single device's"
    for number, code in ((world_size, "sum"), (1 / world_size, "averaged-twice")):
        if world_size > 1 and math.isclose(times, number, rel_tol=1e-6):
            return [finding(code, times, f"{words}: the world size"
                            + (", inverted" if number < 1 else ""), None, t)]
    if pieces > 1 and math.isclose(times, pieces, rel_tol=1e-6):
        return [_accumulated(t, pieces)]
    divisor = rows / times
    if abs(divisor - round(divisor)) < 1e-6 * divisor and divisor < 1e6:
        k = round(divisor)
        words += f": as if divided by {k} rows, of {rows}"
        words += ", a shard's" if k in sizes else ""
    return [finding("factor", times, words, None, t)]


def _accumulated(t, pieces):
    return finding("accumulation", pieces, f"the gradient is {pieces} times a single "
                   f"device's: the number of micro-batches", None, t)


def _list(numbers):
    return ", ".join(f"{number:.4g}" for number in numbers)
