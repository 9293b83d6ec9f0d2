"""The rule about gradients: are they a single device's?

    gradients     the findings, those of the first step that has any
    no_gradient   the finding where nothing comes back

Three witnesses are asked. The loss, if it was given or explains the gradient at world
size 1, run once more on every rank's rows: then a single device's gradient is known.
What came back to each rank's parameters: did every rank apply one mixture of all of it?
And the same code at world size 1: is its step the same? In a script, which nobody runs
alone, a fourth is asked: what the terms of its losses count.
"""

from dataclasses import replace

from manual_dp.audit import single
from manual_dp.audit.averaging import as_one, by_rank
from manual_dp.audit.catalogue import finding
from manual_dp.audit.heard import by_ranks, lost, multiple, stale
from manual_dp.audit.hypotheses import CLOSE, explain, mixture, single_device
from manual_dp.audit.naming import named, right, same
from manual_dp.audit.records import Evidence, each_step
from manual_dp.audit.terms import DIVIDED, counted

MEAN = "whether gradients are averaged"
# with one of these, that the step is another one has been explained
CAUSES = {"buffers", "modes", "frozen", "settings", "random-same", "state-differs",
          "weights-changed", "replicas-differ", "start-differs"}


@each_step
def gradients(notes, evidence):
    """Ask that every rank applies what a single device would apply."""
    if nothing := no_gradient(notes):
        return nothing
    known = {f.code for f in evidence.findings}
    if not any(note.moved for note in notes) or "not-finite" in known:
        return []
    if notes[0].t and any(note.before != notes[0].before for note in notes):
        return []  # of weights that have parted already
    if not evidence.local or "one-rank" in known:  # weights that one rank trained
        return _asked(notes, evidence, known)
    one = as_one(notes)
    return _asked(one, evidence, known) if one else by_rank(notes, evidence)


def _asked(notes, evidence, known):
    """Return the findings of the witnesses; known: codes of those before."""
    told = _by_loss(notes, evidence)
    if told == [] or told and _by_a_hook(told, notes, evidence):
        return []
    if old := stale(notes, evidence):
        return old
    alike, why = single.compared(notes, evidence)
    if told:
        if not alike or _wrong_alone(told, notes, evidence):
            if told[0].code == "gradient" and told[0].parameter is None:
                told = _of_other_rows(notes, evidence, alike is False) or told
            return _renamed(told, notes, evidence)
        evidence.remark("the gradient or update is not that of `loss` alone, but the "
                        "same as at world size 1")
    if alike:
        return []
    heard = by_ranks(notes, evidence)
    if heard:
        return _renamed(heard, notes, evidence)
    if alike is False:
        found = [] if known & CAUSES else single.unlike(notes, evidence)
        if found and found[0].code == "local" and heard is None:
            found = [finding("gradient", 1.0, "the step is not that of world size 1")]
        return _renamed(found, notes, evidence)
    if heard is None:
        evidence.skip(MEAN, why)
        return []
    return _by_terms(notes, evidence, why)


def no_gradient(notes):
    """Return the finding where nothing but 0 comes back, [] elsewhere."""
    came = [note.came for note in notes if note.pieces]
    own = [note.own for note in notes if note.own is not None]
    for sketches in (came, [] if came else own):
        size = sum(float(sketch.norm()) for sketch in sketches)
        if len(sketches) == len(notes) and size < 1e-14:
            return [finding("no-gradient", 0.0, "every gradient is 0: nothing can be "
                            "told from it")]
    return []


def _by_a_hook(told, notes, evidence):
    """Return whether a hook changes gradients on purpose; say what it comes to."""
    if not notes[0].hook:
        return False
    evidence.skip(MEAN, f"the hook {notes[0].hook} "
                  f"changes them; {told[0].says}")
    return True


def _by_terms(notes, evidence, why):
    """Return the findings for what the terms of a script's losses count."""
    if not evidence.watched:
        evidence.skip(DIVIDED, why + "; give `loss`" * (not evidence.runs[0].told))
        return []
    if cleared := lost(notes, evidence):
        return cleared
    right, why, found = counted(notes, evidence)
    if right or found:
        return found
    evidence.skip(DIVIDED, why)
    return multiple(notes, evidence)


# by the loss

def _by_loss(notes, evidence):
    """Return findings, [] where all is right, None where it cannot be told."""
    t, alone = notes[0].t, evidence.alone
    if not (fits := _fits(evidence.steps, t)) or not _reliable(notes, evidence):
        return None
    [first] = _fits(alone, t) or _fits(alone, 0) or [None]
    base = first.numbers[0] if first and right(first) else None
    found = named(evidence, notes, fits, base)
    if found and _weights_averaged(notes):
        evidence.remark("each rank applied its own gradient, and the weights were "
                        "averaged: the same, for plain SGD")
        return []
    return found


def _reliable(notes, evidence):
    """Return whether forwards were the same when they were run again."""
    return not any(note.draws or note.wanders for note in notes) or all(mixture(
        note.own, [note.came], evidence.close) for note in notes if note.pieces)


def _wrong_alone(told, notes, evidence):
    """Return whether world size 1 has this finding, too."""
    t = notes[0].t
    if t >= len(evidence.alone):
        return True
    steps = [note for note, in evidence.alone]
    few = Evidence([replace(evidence.runs[0], steps=steps)], lr=evidence.lr)
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


def _weights_averaged(notes):
    """Return whether the weights made the right step, whatever the optimizer used."""
    if not all(note.plain for note in notes):
        return False
    rate = next(iter(notes[0].rates.values()))
    return all(right(fit) and same(fit.numbers[0], rate)
               for fit in explain([replace(note, used=None) for note in notes]))


def _of_other_rows(notes, evidence, comparable):
    """Return findings for gradients that the loss on a rank's rows does not explain."""
    heard = by_ranks(notes, evidence)
    if found := heard or _weighed(notes):
        return found
    found = single.unlike(notes, evidence) if comparable else []
    if found and found[0].code not in ("local", "gradient"):
        return found
    if heard is None or any(note.early or note.clips for note in notes):
        return []
    return [finding("labels", 0, "gradients are averaged, but they are not those of "
                    "the ranks' rows with the rows' own targets")]


def _weighed(notes):
    """Return the finding where the right gradient weighs micro-batches otherwise."""
    pieces = [piece for note in notes for piece in note.pieces]
    numbers = mixture(single_device(notes), pieces) if len(notes) < len(
        pieces) <= 64 else None
    if not numbers or min(numbers) <= 0 or max(numbers) < min(numbers) * (1 + 1e-6):
        return []
    times = ", ".join(f"{one / min(numbers):.4g}" for one in numbers)
    return [finding("uneven-shards", max(numbers) / min(numbers), "micro-batches of "
                    f"all ranks should count {times} times, by their rows")]


def _renamed(found, notes, evidence):
    """Return the findings, by clipping where that explains them."""
    if found and found[0].code in ("labels", "local") and any(
            note.cleared for note in notes):
        return [finding("accumulation", 0, "gradients were cleared between two "
                        "backward passes of one step")]
    early = any(note.early for note in notes)
    parts = any(len(note.clips) > max(note.updates, 1) for note in notes)
    if found and (early or parts) and found[0].code in (
            "gradient", "counted-twice", "accumulation", "factor", "local"):
        where = ("before they are summed" if early and not parts else
                 "in each micro-batch")
        return [finding("clip", found[0].number, f"gradients are clipped {where}: "
                        + found[0].says, found[0].rank)]
    return found
