"""By what came back to each rank's parameters: did all apply one mixture of it?

    by_ranks   the findings, [] for one mixture of all gradients, None if not known
    lost       the finding for gradients that were cleared and never applied
    multiple   the finding for a sum where a mean is expected
    stale      the finding for a gradient that was there before this step's backward

Here no loss is known: whether the mixture is the right one, others have to say.
"""

import math
from dataclasses import replace

import torch

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.hypotheses import CLOSE, by_world_size, explain, mixture
from manual_dp.audit.naming import accused

DOUBTED = "right only if the loss makes up for it"


def stale(notes, evidence, first=0):
    """Return the finding for a gradient that was there before this step's backward.

    first: the rank of the first of the notes.
    """
    left = [note.left for note in notes if note.left is not None]
    came = [note.came for note in notes if note.pieces]
    if not left or len(came) < len(notes) or notes[0].used is None:
        return []
    who = [rank for rank, note in enumerate(notes, first) if note.left is not None]
    for note in notes:
        numbers = mixture(note.used, came + left, evidence.close)
        if (numbers is None or sum(numbers[len(came):]) < 1e-3
                or mixture(note.used, came, evidence.close)):
            return []
    return [finding("stale", sum(numbers[len(came):]), "the gradient of the step "
                    f"before is in it: it was not cleared on {ranks(who)}", who[0])]


def by_ranks(notes, evidence):
    """Return findings, [] for one mixture of all gradients, None if it is not known."""
    if len(notes) < 2 or any(note.inside or not note.pieces for note in notes):
        return [] if len(notes) < 2 else None
    came = [replace(note, own=note.came, weight=1, rows=[[0]], all_rows=[[0]],
                    size=len(notes), turned=None) for note in notes]
    reached = sum(note.own for note in came).norm(dim=1) > 0
    if any(bool((note.applied.norm(dim=1) > 10 * note.noise)[~reached].any())
           for note in notes):
        return None  # some parameter's gradient was not heard
    if _evenly(came, evidence):
        return []
    if found := _micro_batches(notes, evidence):
        return found
    fits = explain(came)
    if notes[0].used is None and all(fit.hypothesis.code == "gradient" for fit in fits):
        return None  # an update by hand, with a memory
    if any(note.hook for note in notes):
        return None
    found = accused(evidence, came, fits)
    if evidence.watched and _used_alike(notes) and found and not {
            f.code for f in found} - {"gradient", "factor", "nothing-moved"}:
        return None  # changed on all ranks alike: noise, a projection, a layer's limit
    return found


def _used_alike(notes):
    """Return whether all ranks used one gradient, and of this step alone."""
    return all(note.left is None and torch.equal(note.applied, notes[0].applied)
               for note in notes)


def _evenly(came, evidence):
    """Return whether all ranks' gradients count alike, or as their rows do, on all."""
    numbers = [mixture(note.applied, [one.own for one in came if one.own.any()],
                       max(evidence.close, CLOSE)) for note in came]
    if None in numbers:
        return False
    first, sizes = numbers[0], [one.numbers for one in came if one.own.any()]
    close = max(1e-6, evidence.close)  # as exact as the script
    by_rows = [number / size for number, size in zip(first, sizes) if size]
    return all(_alike([a / b for a, b in zip(other, first) if b] + [1.0], close)
               for other in numbers) and (
        _alike(first, close) or len(by_rows) == len(first) and _alike(by_rows, close))


def lost(notes, evidence):
    """Return the finding for gradients that were cleared before they were applied."""
    if evidence.runs[0].several or not any(
            note.cleared and not note.wanders for note in notes):
        return []
    # of so many forwards, one of which is left
    if not any(len(note.all_rows) > 1 and math.isclose(1, len(note.all_rows) * sum(
            part.terms * (part.each or 0) for part in note.terms),
            rel_tol=evidence.close) for note in notes):
        evidence.skip("gradients that were cleared between two backward passes, and "
                      "never applied", "right if a step was skipped, or inputs' alone "
                      "were wanted")
        return []
    return [finding("accumulation", 0, "gradients were cleared between two backward "
                    "passes, and never applied")]


def multiple(notes, evidence):
    """Return the finding for a sum, or for a part, of what came back to the ranks.

    A sum is right if the loss is divided by all ranks' rows: nobody knows this here.
    """
    came = [note.came for note in notes]
    numbers = mixture(notes[0].applied, came, evidence.close)
    if len(notes) < 2 or not numbers or notes[0].used is None:
        return []
    times, says = sum(numbers), "; ".join((
        "gradients are {times:.4g} times the mean of the ranks'",
        f"{DOUBTED}: ignore=[{{code!r}}]"))
    code, _ = by_world_size(times, len(notes), 10 * evidence.close)
    return [finding(code, times, says.format(times=times, code=code))] if code else []


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
        close = max(1e-6, evidence.close)
        tiny = close * max(map(abs, numbers))
        alone = [m for m in range(most) if abs(of.get((rank, m), 0)) > tiny and all(
            abs(of.get((one, m), 0)) <= tiny for one in range(len(notes))
            if one != rank)]
        if 0 < len(alone) < most:
            return [finding("not-synchronised", len(alone), "of micro-batch "
                            f"{alone[0] + 1} of {most} {ranks([rank])} applied its own "
                            "gradient alone", rank)]
        each = [of.get((rank, m), 0) for m in range(most)]
        each = [one for one in each if abs(one) > tiny]  # others are of no step
        if not alone and not _alike(each, close):
            return [finding("accumulation", max(each) / (min(each) or 1),
                            "micro-batches count " + ", ".join(
                                f"{one:.4g}" for one in each) + " times")]
    return []
