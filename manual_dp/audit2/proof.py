"""Is the ranks' step the one that the same code takes alone? Then it is right.

    prove   True; False; or None, and why the two cannot be compared
"""

from collections import Counter

MOVED = 1e-6  # of the weights: what is farther apart at the begin is another start


def prove(step):
    """Return (True, ""), (False, ""), or (None, why)."""
    one, first, last = step.alone, step.first, step.last
    if not one or step.world_size < 2:
        return None, "nothing was run at world size 1"
    size = float(one[0].start.norm())
    if any(u.start.shape != one[0].start.shape
           or float((u.start - one[0].start).norm()) > MOVED * size for u in first):
        return None, "at world size 1 the weights before the step are others"
    if _moved_alike(step, size) and _used_alike(step):
        return True, ""
    if any(u.wanders for u in [*first, *last]):
        return None, "weights move between the forwards of a step"
    if any(u.drew for u in [*first, *last, *one]):
        return None, "the step draws random numbers"
    if why := _other_rows(step):
        return None, why
    if step.runs[0].blurs:
        return None, step.runs[0].blurs
    return False, ""


def _moved_alike(step, size):
    move = step.alone[0].start - step.alone[-1].stop
    rest = max(float((a.start - b.stop - move).norm())
               for a, b in zip(step.first, step.last))
    return rest <= step.close * float(move.norm()) + 1e-13 * size


def _used_alike(step):
    """Return whether gradients are one device's, where a step does not show it."""
    its = step.alone[-1]
    return all(u.plain or u.used is None or its.used is None or u.held != its.held
               or float((u.used - its.used).norm()) <= step.close * float(
                   its.used.norm()) for u in step.last)


def _other_rows(step):
    """Return why one device does not take the ranks' rows, "" if it does."""
    rows = [step.rows(us) for us in step.updates]
    its, numbers = step.rows(step.alone), sum(u.numbers for u in step.alone)
    ranks = [sum(u.numbers for u in us) for us in step.updates]
    if None in rows or its is None:
        if sum(ranks) != numbers and any(n != numbers for n in ranks):
            return "at world size 1 the step takes other rows"
    elif any(rows) and its and Counter(its).keys() and (
            step.first[0].batch[0] != step.alone[0].batch[0]):
        return "at world size 1 the minibatch is another one"
    return ""
