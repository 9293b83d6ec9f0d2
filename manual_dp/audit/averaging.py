"""Ranks that train on their own and average their weights now and then: local SGD.

    hooks      note torch's own averagers at work
    unsent     whether a rank took a step for itself: it is watched for longer
    averages   the findings for weights that ranks send, but do not average
    as_one     the notes of a step that is the mean gradient's all the same
    by_rank    the findings of a step in which each rank is a device by itself
    later      say that weights may be averaged after the steps that were watched

It is seen by this: the optimizers leave different weights, and when the step has ended
all ranks have one model, the mean of theirs. No gradient need be averaged then. Or the
model is that of one rank, which steps for all. Asked of scripts only.
"""

import sys
from dataclasses import replace
from unittest import mock

from manual_dp.audit.catalogue import finding, ranks
from manual_dp.audit.heard import by_ranks, lost, stale
from manual_dp.audit.hypotheses import mixture
from manual_dp.audit.shares import put_back
from manual_dp.audit.terms import DIVIDED, counted

AVERAGERS = {"averagers": "PeriodicModelAverager",
             "hierarchical_model_averager": "HierarchicalModelAverager"}
MORE, MOST = 60, 20  # steps, and seconds: an average may come
HERE = 0.01  # of the distance between ranks: a mean is as near as that; of a step


def hooks(watch):
    """Yield patches of torch's averagers that the script knows."""
    for file, name in AVERAGERS.items():
        known = sys.modules.get(f"torch.distributed.algorithms.model_averaging.{file}")
        if known:
            yield _heard(getattr(known, name), watch)


def _heard(averager, watch):
    average = averager.average_parameters
    return mock.patch.object(averager, "average_parameters", lambda *args, **kwargs: (
        setattr(watch.note, "averager", True) or average(*args, **kwargs)))


def unsent(note):
    """Return whether a rank took this step with a gradient and weights of its own."""
    if note.synced or note.summed or note.reduced or not note.stepped or (
            note.used is None or note.came is None):
        return False
    apart = float((note.used - note.came).norm())
    return apart <= HERE * float(note.came.norm()) and all(
        note.after[i] == one for i, one in note.stepped.items())


def averages(evidence):
    """Ask that ranks which send one another weights take the mean of these."""
    joins = any(note.wraps == "join" for notes in evidence.steps for note in notes)
    if not evidence.watched or joins or any(f.code == "alias"
                                            for f in evidence.findings):
        return []  # beside a single device, it is another training; Join sends weights
    for notes in evidence.steps:
        if len(notes) < 2 or any(note.mine is None for note in notes):
            continue
        if _parted(notes) and all(note.after == notes[0].after for note in notes):
            if found := put_back(notes, evidence.names):
                return [found]
            evidence.local = True
            if found := _sent(notes, evidence):
                return [found]
    if evidence.local and all(map(as_one, evidence.steps)):
        who = _giver(evidence.steps[0])
        evidence.remark("each rank applied its own gradient, and the weights were "
                        "averaged: the same, for plain SGD" if who is None else
                        f"rank {who} steps for all: the others get its weights")
    elif evidence.local:
        evidence.skip("whether it is one device's training", "ranks train on their "
                      "own, and average their weights afterwards (local SGD)")
    elif any(note.averager for notes in evidence.steps for note in notes):
        evidence.local = True
        evidence.skip("the average of weights", "torch's averager took none in these "
                      "steps; --steps takes more")
    return []


def _parted(notes):
    """Return whether the optimizers' steps left the ranks with different weights."""
    if all(note.stepped == notes[0].stepped for note in notes):
        return False
    steps = [note.mine - note.weights - note.step for note in notes]
    apart = max(float((step - steps[0]).norm()) for step in steps)
    return apart > HERE * max(float(step.norm()) for step in steps)  # no last digits


def _are(notes, times):
    """Return whether all ranks have so many times the mean of what theirs were."""
    mean, now = sum(note.mine for note in notes) / len(notes), notes[0].weights
    apart = max(float((note.mine - mean).norm()) for note in notes)
    close = HERE * apart + 10 * notes[0].close ** 2 * float(now.norm())
    return float((now - times * mean).norm()) <= close


def as_one(notes):
    """Return notes in which all ranks used one gradient, None if there is no such one.

    The mean of the weights after steps of plain SGD is the weights after one such step
    with the mean gradient. And one rank may step for all, and send its weights.
    """
    if any(note.used is None or note.after != notes[0].after for note in notes):
        return None
    if (who := _giver(notes)) is not None:
        return [replace(note, used=notes[who].used) for note in notes]
    plain = all(note.plain and note.rates == notes[0].rates for note in notes)
    if not plain or not _are(notes, 1):
        return None
    mean = sum(note.used for note in notes) / len(notes)
    return [replace(note, used=mean) for note in notes]


def _giver(notes):
    """Return the first rank of which all have the weights now, or None."""
    return next((rank for rank, note in enumerate(notes) if note.stepped == {
        i: note.after[i] for i in note.stepped}), None)


def _sent(notes, evidence):
    """Return the finding for weights that are not the mean of the ranks', or None."""
    when, t, world_size = f"after step {notes[0].t}", notes[0].t, len(notes)
    if (who := _giver(notes)) is not None:
        return None if _evenly_used(notes[who], notes) else finding(
            "one-rank", 1, f"{when} all ranks have the weights of {ranks([who])}: what "
            "the others trained is lost", who, t)
    if _are(notes, 1):
        return None
    for code, times, says in (("sum", world_size, "summed, and not divided"),
                              ("averaged-twice", 1 / world_size, "divided twice")):
        if _are(notes, times):
            return finding(code, times, f"{when} the ranks' weights are {says}", None,
                           t)
    evidence.skip("what becomes of the ranks' weights", f"{when} all have the same "
                  "ones, which are not the mean")
    return None


def _evenly_used(note, notes):
    """Return whether a rank used what came to all ranks alike."""
    numbers = mixture(note.applied, [one.came for one in notes if one.pieces],
                      note.close)
    return bool(numbers) and len(numbers) == len(notes) and min(numbers) > 0 and (
        max(numbers) - min(numbers) <= max(1e-6, note.close) * max(numbers))


def by_rank(notes, evidence):
    """Return findings for a step of which each rank is judged as one device."""
    if not by_ranks(notes, evidence):  # averaged all the same, or not known
        return []
    for rank, note in enumerate(notes):
        found = stale([note], evidence, rank) or lost([note], evidence)
        if not found:
            right, why, found = counted([note], evidence)
            if not right and not found:
                evidence.skip(DIVIDED, why)
        if found:
            return [f._replace(rank=rank) for f in found]
    return []


def later(evidence):
    """Say that weights may be averaged after the steps that were watched."""
    if evidence.watched and {"not-synchronised", "replicas-differ"} <= {
            f.code for f in evidence.findings} and not any(
            note.wraps for notes in evidence.steps for note in notes):
        evidence.remark("if ranks average their weights later (local SGD), watch until "
                        "then: --steps")
    return []
