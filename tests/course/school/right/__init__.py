"""Right answers, a file for each set or topic: {exercise: {style: cell}}."""

from tests.course.school import wrong
from tests.course.school.wrong import filled, tables

TEMPLATES = tables(wrong, "WRONG")


def changed(name, *pairs, **changes):
    """Return the cell that an exercise's wrong answers are made of, in another style.

    changes: other words in its places; pairs: what stood in it, and what stands there now.
    """
    cell = filled(name, TEMPLATES[name][0], changes)
    for old, new in pairs:
        if old not in cell:
            raise ValueError(f"{name}: no {old!r} in{cell}")
        cell = cell.replace(old, new)
    return cell
