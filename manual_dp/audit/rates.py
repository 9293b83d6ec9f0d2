"""Learning rates: the same on all ranks, and fit for the rows of a step.

    rates           a rate that one rank has for itself
    learning_rate   lr and rows, against those at world size 1: which regime is it?

Same rows a step: nothing changes. World size times the rows, as with fixed rows a rank:
lr grows too, linearly for SGD (Goyal et al. 2017), by the square root for Adam (Malladi
et al. 2022), in either case with warm-up.
"""

import math

from manual_dp.audit.catalogue import finding


def rates(t, notes):
    """Return a finding if learning rates differ between ranks in step t."""
    for rank, note in enumerate(notes):
        for i, rate in note["rates"].items():
            other = notes[0]["rates"].get(i, rate)
            if rate != other:
                return [finding("rates-differ", rate / other if other else math.inf,
                                f"lr is {rate:.4g} on rank {rank}, {other:.4g} on rank "
                                "0", rank, t)]
    return []


def learning_rate(notes, alone, remarks):
    """Return findings: lr and rows, compared with world size 1; or say what is so."""
    if not alone or not (notes[0]["rates"] and alone["steps"][0]["rates"]):
        return []
    one = alone["steps"][0]
    i = next(iter(notes[0]["rates"]))
    lr, base = notes[0]["rates"][i], one["rates"].get(i)
    rows, few = _rows(notes), _rows([one])
    if not (base and lr and rows and few):
        return []
    grown, ratio = rows / few, lr / base
    adam = "Adam" in notes[0]["kind"]
    rule = math.sqrt(grown) if adam else grown
    kind = "square root for Adam" if adam else "linear for SGD"
    says = (f"{rows} rows a step and lr {lr:.4g} on {len(notes)} ranks, {few} rows and "
            f"{base:.4g} on one")
    if math.isclose(ratio, rule, rel_tol=1e-2):
        regime = ("same rows a step, so no scaling of lr" if grown == 1 else
                  f"fixed rows a rank, lr scaled ({kind}; use warm-up)")
        remarks.append(f"{regime}: {says}")
    elif math.isclose(ratio, 1, rel_tol=1e-9):
        remarks.append(f"fixed rows a rank, lr not scaled (the rule, {kind}, with "
                       f"warm-up, would be {base * rule:.4g}): {says}")
    elif grown == 1:
        return [finding("learning-rate", ratio, f"{says}: the minibatch is the same, "
                        f"lr is {ratio:.4g} times", None, 0)]
    else:
        return [finding("learning-rate", ratio, f"{says}: lr is {ratio:.4g} times, the "
                        f"rule ({kind}) says {rule:.4g}", None, 0)]
    return []


def _rows(notes):
    """Return the rows of a step, 0 if they are not known."""
    lists = [rows for note in notes for rows in note["rows"]]
    return 0 if None in lists else sum(map(len, lists))
