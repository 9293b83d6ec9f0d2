"""Is it the step of a single device, as the same code took it at world size 1?

    compared   whether it is; None, and why, where the two cannot be compared
    unlike     the finding, where it is another step
    other_step, beside   rules: if gradients are right, is the rest of a step, too?

This needs no knowledge of the loss: what is right, the code says when it is alone.
"""

import math
from collections import Counter
from dataclasses import replace

from manual_dp.audit.catalogue import finding
from manual_dp.audit.hypotheses import by_world_size, mixture
from manual_dp.audit.records import each_step

DRAWN = "the step draws random numbers"


def compared(notes, evidence):
    """Return (same, why): whether every rank's step is that of world size 1."""
    t = notes[0].t
    if evidence.watched:
        return None, "a script's loss is not known; `audit` runs it on one device"
    if t is None or t >= len(evidence.alone):
        return None, "there is nothing to compare with at world size 1"
    [alone] = evidence.alone[t]
    if any(note.given != alone.given for note in notes):
        return None, "before its steps a rank draws numbers by a seed of its own"
    close, noise = evidence.close, 1e-15 * alone.blur
    if any(_apart(_start(note), _start(alone)) > 1e-6 * alone.blur for note in notes):
        return None, "at world size 1 the weights before the step are others"
    if all(_same(note, alone, close, 100 * noise, evidence.fixed) for note in notes):
        return True, ""
    if any(note.drawn != alone.drawn for note in notes):
        return None, f"{DRAWN}, others at world size 1"
    if any(note.random != alone.random for note in notes):
        return None, f"{DRAWN}, others on one device"
    if any(note.updates != alone.updates for note in notes):
        return None, "at world size 1 the optimizer takes other steps"
    numbers, whole = sum(note.numbers for note in notes), all(
        (note.numbers, _rows([note])) == (alone.numbers, _rows([alone]))
        for note in notes)
    if not whole and (numbers != alone.numbers or _rows(notes) != _rows([alone])):
        return None, "at world size 1 the step takes other rows"
    if any(note.wanders for note in notes):
        return None, "weights are moved between the forwards of a step"
    if any(note.wraps == "join" for note in notes):
        return None, "under Join ranks end at different forwards"
    if any(note.hook for note in notes):
        return None, f"gradients are changed by the hook {notes[0].hook}"
    # layers that all-reduce take the statistics of all rows
    if evidence.own_norms if notes[0].summed else evidence.norms:
        return None, "batch norm takes the statistics of a rank's own rows"
    return False, ""


def _same(note, alone, close, noise, fixed):
    """Return whether it is one step; fixed: by its gradient, as lr may be another."""
    if fixed and note.used is not None:
        return not _other_gradients(replace(note, kind=""), alone, close)
    return _apart(note.step, alone.step) <= close * float(
        alone.step.norm()) + noise and not _other_gradients(note, alone, close)


def _other_gradients(note, alone, close):
    """Return whether the optimizer, if there is one, has other gradients."""
    if note.kind == "SGD" or note.used is None or alone.used is None:
        return False
    held = list(note.rates)
    return _apart(note.used[held], alone.used[held]) > close * float(alone.used.norm())


def _start(note):
    return note.weights + note.step


def _apart(one, other):
    return float((one - other).norm()) if one.shape == other.shape else math.inf


def _rows(notes):
    """Return how often each row was seen, None if that is not known."""
    lists = [rows for note in notes for rows in note.all_rows]
    return None if None in lists else Counter(row for rows in lists for row in rows)


def unlike(notes, evidence):
    """Return the findings for a step that is not world size 1's, and should be.

    That every rank applies the same mixture of all ranks' gradients is known.
    """
    [alone] = evidence.alone[notes[0].t]
    came = [note.came for note in notes if note.pieces]
    used = notes[0].applied
    if alone.used is not None and _apart(used, alone.used) <= evidence.close * float(
            alone.used.norm()):
        return []  # and the step is not: said by later rules
    if len(came) < len(notes) or (notes[0].used is None) != (alone.used is None):
        return [_size(used, alone.applied, notes)]
    wanted, is_now = (mixture(one, came, evidence.close)
                      for one in (alone.applied, used))
    if wanted is None or is_now is None:
        pieces = [piece for note in notes for piece in note.pieces]
        wanted, is_now = (mixture(one, pieces, evidence.close) if len(pieces) <= 64 else
                          None for one in (alone.applied, used))
    if wanted is None or is_now is None or min(map(abs, wanted)) < 1e-9:
        cut = next((f": {note.cut} hands no gradient back to what it is given"
                    for note in notes if note.cut), "")
        return _other_aims(notes, alone) or [
            finding("local", 1.0, "no mixture of the ranks' gradients is the one of a "
                    f"single device{cut}")]
    times = [now / then for now, then in zip(is_now, wanted)]
    if max(times) - min(times) <= 1e-6 * max(map(abs, times)):
        return [_scaled(times[0], notes)]
    least = min(wanted)
    return [finding("uneven-shards", max(wanted) / sum(wanted) * len(wanted), "ranks' "
                    "gradients count alike, on a single device they count "
                    + ", ".join(f"{one / least:.4g}" for one in wanted) + " times")]


def _other_aims(notes, alone):
    """Return the finding where the same rows have other targets on one device.

    They are there for other rows: what is made of a rank's rows is not.
    """
    rows = _rows(notes)
    if rows is None or rows != _rows([alone]):
        return []
    places = {part.place for note in (*notes, alone) for part in note.terms}
    for place in sorted(places):
        mine, its = ([part for note in who for part in note.terms
                      if part.place == place] for who in (notes, [alone]))
        aims, right = (Counter(aim for part in parts for aim in part.aims)
                       for parts in (mine, its))
        if len({part.shape for part in mine + its}) == 1 and (
                aims.total() == right.total()) and aims.keys() <= right.keys():
            if more := (aims - right).total():
                return [finding("labels", more, f"{more} of {aims.total()} targets of "
                                f"{place} are others than on one device, and the rows "
                                "are the same")]
    return []


def _size(used, right, notes):
    times = float((used * right).sum() / right.square().sum().clamp(min=1e-300))
    if _apart(used, times * right) > 1e-6 * float(used.norm()):
        return finding("gradient", times, "the step is not the one of world size 1")
    return _scaled(times, notes)


def _scaled(times, notes):
    """Return the finding for a gradient that is `times` a single device's."""
    pieces = len(notes[0].pieces)
    code, why = by_world_size(times, len(notes))
    if not code and pieces != 1 and math.isclose(times, pieces, rel_tol=1e-6):
        code, why = "accumulation", ": the number of micro-batches"
    return finding(code or "factor", times, f"the step is {times:.4g} times a single "
                   f"device's{why}")


@each_step
def other_step(notes, evidence):
    """Ask that equal gradients make a single device's step."""
    if not (evidence.findings or evidence.local) and (
            compared(notes, evidence)[0] is False):
        yield finding("gradient", 1.0, "every rank's optimizer has a single device's "
                      "gradient, but takes another step")


@each_step
def beside(notes, evidence):
    """Ask that an average of weights is a single device's, if the step is."""
    if evidence.findings or not compared(notes, evidence)[0]:
        return
    [alone] = evidence.alone[notes[0].t]
    if not _same(notes[0], alone, evidence.close, 1e-13 * alone.blur, fixed=False):
        return  # of other weights
    its = alone.setup.sketches
    for name, mine in notes[0].setup.sketches.items():
        if name in its and float((mine - its[name]).norm()) > evidence.close * float(
                mine.norm()):
            yield finding("state-differs", 1, f"{name} is on no rank what it is on one "
                          "device, though the weights are", None, parameter=name)
            return
