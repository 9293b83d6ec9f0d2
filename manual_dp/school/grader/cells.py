"""The cells of a problem set, as nbgrader marked them: answers, and what is locked.

    join      make one cell of those that carry one grade id
    source    the text of a cell, grade_id its mark
    edited    was a locked cell changed?
    checksum  what nbgrader writes into a cell, to see whether it was changed

JupyterLab copies the mark when a learner splits or copies a cell. A cell is a dict that
a stranger wrote: it may hold anything.
"""

import hashlib
from contextlib import suppress


def join(cells):
    """Return the cells, those answers that carry one grade id joined in their order.

    The joined cell stands where the first stood. A copy that nobody wrote into is left
    out: below the answer it would define the function anew.
    """
    groups = {}
    for cell in cells:
        if is_answer(cell):
            key = grade_id(cell), _word(cell.get("cell_type"))
            groups.setdefault(key, []).append(cell)
    gone = set()
    for first, *others in groups.values():
        if others:
            written = [cell for cell in (first, *others) if not _untouched(cell)]
            first["source"] = "\n".join(map(source, written or [first]))
            gone.update(map(id, others))
    return [cell for cell in cells if id(cell) not in gone]


def is_answer(cell):
    """Return whether a cell is one that a learner writes into."""
    mark = _mark(cell)
    return (mark.get("solution") is True and grade_id(cell) is not None
            and source(cell) is not None)


def edited(cell):
    """Return whether a cell is locked and yet not as it was handed out."""
    mark = _mark(cell)
    return (_locked(mark) and grade_id(cell) is not None
            and isinstance(mark.get("checksum"), str) and not _untouched(cell))


def source(cell):
    """Return the text of a cell, None if it has none."""
    text = cell.get("source") if isinstance(cell, dict) else None
    if isinstance(text, list):
        text = "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else None


def grade_id(cell):
    """Return the grade id of a cell, None if it has none."""
    name = _mark(cell).get("grade_id")
    return name if isinstance(name, str) else None


def checksum(cell):
    """Return nbgrader's checksum of a cell that it marked."""
    mark = _mark(cell)
    parts = [source(cell) or "", _word(cell.get("cell_type")), bool(mark.get("grade")),
             bool(mark.get("solution")), _locked(mark), grade_id(cell)]
    if mark.get("grade"):
        with suppress(TypeError, ValueError, OverflowError):
            parts.append(float(mark.get("points")))
    text = "".join(map(str, parts)).encode(errors="surrogatepass")
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def _untouched(cell):
    return _mark(cell).get("checksum") == checksum(cell)


def _word(value):
    return value if isinstance(value, str) else ""


def _locked(mark):
    return not mark.get("solution") and bool(mark.get("grade") or mark.get("locked"))


def _mark(cell):
    meta = cell.get("metadata") if isinstance(cell, dict) else None
    mark = meta.get("nbgrader") if isinstance(meta, dict) else None
    return mark if isinstance(mark, dict) else {}
