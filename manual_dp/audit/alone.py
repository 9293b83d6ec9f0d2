"""Gradients, held against a single device's and against the same code at world size 1.

    gradients       findings about the gradients of all ranks
    reading_alone   what gradient the code applies at world size 1, a `Reading`
    as_alone        whether the ranks' update is that one, whatever it may be
    doubtful        findings that need later steps of the run at world size 1

What the code does alone is what it means to do: a clipped gradient, a loss of its own,
an update by hand with a momentum. What it does on many ranks should be the same.
"""

import math

from manual_dp.audit.catalogue import finding
from manual_dp.audit.gradient import CLOSE, applied, read_step
from manual_dp.audit.name import name_step

SCALES = ("factor", "sum", "averaged-twice", "accumulation", "stale", "gradient")


def gradients(runs, steps, alone, lr, remarks):
    """Return the findings about gradients, those of the first step that has any.

    steps: of each step the notes of all ranks. alone: the record at world size 1 or
    None; lr: as in `judge`. Adds to `remarks` what is no mistake.
    """
    before = None
    for t, notes in enumerate(steps):
        if any(note["own"] is None for note in notes):
            if any(note["moved"] for note in notes):
                return [finding("not-judged", 0, "the gradient: the model's input is "
                                "not rows of X", None, t)]
            before = None
            continue
        if sum(float(note["own"].norm()) for note in notes) < 1e-14:
            return [finding("no-gradient", 0.0, "every gradient is 0: nothing can be "
                            "told from it", None, t)]
        if not all(note["moved"] for note in notes):
            return []
        readings = read_step(notes, before)
        single = alone and reading_alone(alone, t)
        base = single or alone and reading_alone(alone, 0)
        found, told = name_step(t, readings, notes, runs[0]["names"],
                                _expected(notes, base, lr))
        if found and _averaged(notes):
            found, told = [], ["each rank applied its own gradient, and the weights "
                               "were averaged: the same, for plain SGD"]
        if found and single and as_alone(notes, alone["steps"][t], single):
            found, told = [], ["the gradient or update is not that of `loss` alone, "
                               "but the same as at world size 1"]
        for words in told:
            _remark(remarks, words)
        if found:
            return found
        before = notes
    return []


def _remark(remarks, words):
    if words not in remarks:
        remarks.append(words)


def _averaged(notes):
    """Return whether the weights made the right step, whatever the optimizer used."""
    if not all(note["plain"] and note["kind"] == "SGD" for note in notes):
        return False
    rate = next(iter(notes[0]["rates"].values()))
    plain = [{**note, "used": None} for note in notes]
    return all(reading.label == "right" and
               math.isclose(reading.factor, rate, rel_tol=1e-6)
               for reading in read_step(plain))


def reading_alone(alone, t):
    """Return the reading of step t at world size 1, None if there is none."""
    steps = alone["steps"][:t + 1]
    if len(steps) <= t or steps[t]["own"] is None or not steps[t]["moved"]:
        return None
    before = [steps[t - 1]] if t and steps[t - 1]["own"] is not None else None
    return read_step([steps[t]], before)[0]


def _expected(notes, single, lr):
    """Return {"factor", "alone"}: see `name_step`.

    An optimizer of torch's was seen with its gradients: a right one is 1 times the mean
    loss's. Otherwise it is lr times that or, without lr, as often as at world size 1.
    """
    base = single.factor if single and single.label == "right" else None
    if notes[0]["used"] is not None:
        return {"factor": 1.0, "alone": base}
    return {"factor": base if lr is None else lr, "alone": base}


def as_alone(notes, note, single):
    """Return whether what was applied is as at world size 1: a memory, another loss."""
    if (notes[0]["used"] is None) != (note["used"] is None):
        return False
    if single.label in ("right", "labels"):
        return False
    if single.label == "stale" and (notes[0]["used"] is not None
                                    or single.detail >= 1 - CLOSE):
        return False  # no momentum: gradients were not cleared
    far = max(float((applied(other) - applied(note)).norm()) for other in notes)
    return far <= CLOSE * float(applied(note).norm())


def doubtful(findings, alone):
    """Return whether a finding may be the code's own way at world size 1 too."""
    unknown = alone["steps"][0]["own"] is None
    return any(f.code in SCALES and (f.step or unknown) for f in findings)
