"""Read a notebook that was handed in: as data, never run, never trusted."""

import json
import os
import stat
from pathlib import Path

from manual_dp.school.exercise import SETS

LARGEST = 20 * 2**20  # bytes


def identify(path):
    """Return (student, problem set) for .../student/ps1/name.ipynb or .../ps1.ipynb.

    Raises ValueError if neither the file nor a folder above it is named as a set.
    """
    *folders, file = Path(os.path.abspath(path)).parts
    for i in reversed(range(1, len(folders))):
        if folders[i] in SETS:
            return folders[i - 1], folders[i]
    for name in SETS:
        if name in file:
            return folders[-1], name
    raise ValueError("no problem set in its name: hand in as student/ps1/ps1.ipynb")


def read(path):
    """Return ({grade id: source} of code answers, {grade id: text} of those in words).

    Raises ValueError, in words for the instructor, for what is no readable notebook.
    Of two cells with one grade id the first counts.
    """
    notebook = _load(path)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("this is no notebook: it has no cells")
    code, words = {}, {}
    for cell in cells:
        try:
            meta, source = cell["metadata"]["nbgrader"], cell["source"]
            grade_id, solution = meta["grade_id"], meta["solution"]
        except (TypeError, KeyError):  # a cell of another form
            continue
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if solution is True and isinstance(grade_id, str) and isinstance(source, str):
            home = code if cell.get("cell_type") == "code" else words
            home.setdefault(grade_id, source)
    if not code:
        raise ValueError("no cell carries a grade id: not a notebook of this course, "
                         "or its metadata were stripped")
    return code, words


def _load(path):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for ever
            raise ValueError("this is no file")
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"cannot be opened: {error.strerror}") from None
    if len(data) > LARGEST:
        raise ValueError(f"larger than {LARGEST // 2**20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("this is no notebook: not JSON") from None
