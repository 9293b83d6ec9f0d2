"""The cells of a problem set, as nbgrader marked them: answers, and what is locked.

    join      make one cell of those that carry one grade id
    together  the text of such a cell: without what would break the rest
    source    the text of a cell, grade_id its mark
    edited    was a locked cell changed?
    checksum  what nbgrader writes into a cell, to see whether it was changed

JupyterLab copies the mark when a learner splits or copies a cell. A cell is a dict that
a stranger wrote: it may hold anything. Code is parsed here, and never run.
"""

import ast
import hashlib
from contextlib import suppress

from manual_dp.school.grader.statements import plain

LONGEST = 20_000  # letters that are parsed
MANY = 12         # parts of one answer that are tried


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
            parts = list(map(source, written or [first]))
            code = first.get("cell_type") == "code"
            first["source"] = together(parts) if code else "\n".join(parts)
            gone.update(map(id, others))
    return [cell for cell in cells if id(cell) not in gone]


def together(parts):
    """Return the parts of an answer as one text, without those that break the others.

    In a notebook an old attempt with a mistake in its syntax fails alone; so it does
    here. A part need not be Python by itself, since a split goes through a function: as
    few parts are left out as will do. A comment stands in their place. Where nothing
    would be left, nothing is left out, and Python's own message says where it fails.
    """
    whole = "\n".join(parts)
    if len(parts) > MANY or len(whole) > LONGEST or _is_python(whole):
        return whole
    best = [()]  # for so many of the first parts: which are left out
    for end in range(1, len(parts) + 1):
        kept = [best[start] for start in range(end)
                if _is_python("\n".join(parts[start:end]))]
        best.append(min([*kept, (*best[-1], end - 1)], key=len))
    gone = best[-1]
    if len(gone) == len(parts):
        return whole
    return "\n".join(
        f"# cell {i + 1} of {len(parts)} of this answer is left out: it is not Python"
        if i in gone else part for i, part in enumerate(parts))


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


def _is_python(text):
    try:
        ast.parse(plain(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


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
