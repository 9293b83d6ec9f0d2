"""Is the ranks' step the one that the same code takes alone? Then it is right.

    prove   (True, ""); (False, ""); or (None, why the two cannot be compared)
"""


def prove(step):
    """Compare a step of all ranks with one device's; steps as in `rules`."""
    one, first, last = step.alone, step.first, step.last
    if not one or step.world_size < 2:
        return None, "nothing was run at world size 1"
    size = float(one[0].start.norm())
    if any(u.start.shape != one[0].start.shape
           or float((u.start - one[0].start).norm()) > 1e-6 * size for u in first):
        return None, "at world size 1 the weights before the step are others"
    if _moved_alike(step, size) and _used_alike(step):
        return True, ""
    if any(u.wanders for u in [*first, *last]):
        return None, "weights move between the forwards of a step"
    if any(u.drew for u in [*first, *last, *one]):
        return None, "the step draws random numbers"
    if _other_rows(step):
        return None, "at world size 1 the step takes other rows"
    why = step.runs[0].blurs
    return (None, why) if why else (False, "")


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
    rows, its = [step.rows(us) for us in step.updates], step.rows(step.alone)
    if None in rows or its is None:
        numbers = sum(u.numbers for u in step.alone)
        ranks = [sum(u.numbers for u in us) for us in step.updates]
        return sum(ranks) != numbers and any(n != numbers for n in ranks)
    return any(rows) and bool(its) and (
        step.first[0].batch[0] != step.alone[0].batch[0])
