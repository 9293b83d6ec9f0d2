"""The rule about the learning rate: does it fit the rows of a step?

    learning_rate   the findings, beside the same code at world size 1
"""

import math

from manual_dp.audit.catalogue import finding
from manual_dp.audit.single import compared


def learning_rate(evidence):
    """Ask that lr fits the rows of a step, compared with world size 1; say how.

    Same rows a step: nothing changes. World size times the rows, as with fixed rows a
    rank: lr grows too, linearly for SGD (Goyal et al. 2017), by the square root for
    Adam (Malladi et al. 2022), in either case with warm-up.
    """
    if not evidence.alone or evidence.fixed or len(evidence.runs) < 2:
        return []
    if any(f.code.startswith("rows") for f in evidence.findings):
        return []  # then it is not known how many rows are meant
    for notes, alone in zip(evidence.steps, evidence.alone):
        if found := _rate(notes, alone, evidence):
            return found
    return []


def _rate(notes, alone, evidence):
    i = next(iter(notes[0].rates), None)
    lr, base = notes[0].rates.get(i), alone[0].rates.get(i)
    size, size_alone, unit = _step_rows(notes), _step_rows(alone), "rows"
    if not (size and size_alone):
        size, size_alone, unit = (sum(note.numbers for note in both)
                                  for both in (notes, alone)), 0, "numbers"
        size, size_alone = size
    if not (base and lr and size and size_alone) or notes[0].wraps == "join":
        return []
    grown, ratio = size / size_alone, lr / base
    kind, rule = "linear for SGD", grown
    if "Adam" in notes[0].kind:
        kind, rule = "square root for Adam", math.sqrt(grown)
    says = (f"{size} {unit} a step and lr {lr:.4g} on {len(notes)} ranks, {size_alone} "
            f"{unit} and {base:.4g} on one")
    if notes[0].t:
        if grown == 1 and not math.isclose(ratio, 1, rel_tol=1e-9) and not compared(
                notes, evidence)[0]:
            return [finding("learning-rate", ratio, f"in step {notes[0].t}: {says}: a "
                            "schedule that goes with the world size?", None,
                            notes[0].t)]
        return []
    if math.isclose(ratio, rule, rel_tol=1e-2):
        regime = ("same rows a step, so no scaling of lr" if grown == 1 else
                  f"fixed rows a rank, lr scaled ({kind}; use warm-up)")
    elif math.isclose(ratio, 1, rel_tol=1e-9):
        regime = (f"fixed rows a rank, lr not scaled (the rule, {kind}, with warm-up, "
                  f"would be {base * rule:.4g})")
    elif compared(notes, evidence)[0]:  # the gradient makes up for it
        regime = f"lr is {ratio:.4g} times, and the step is the same"
    else:
        says += (f": the minibatch is the same, lr is {ratio:.4g} times" if grown == 1
                 else f": lr is {ratio:.4g} times, the rule ({kind}) says {rule:.4g}")
        return [finding("learning-rate", ratio, says, None, 0)]
    evidence.remark(f"{regime}: {says}")
    return []


def _step_rows(notes):
    """Return the rows of a step, 0 if they are not known."""
    lists = [rows for note in notes for rows in note.rows]
    return 0 if None in lists or not notes[0].size else sum(map(len, lists))
