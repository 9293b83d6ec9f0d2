"""Read a notebook that was handed in: as data, never run, never trusted."""

import json
import os
import stat
from pathlib import Path

from manual_dp.school.exercise import SETS
from manual_dp.school.grader.cells import edited, grade_id, is_answer, join, source

LARGEST = 20 * 2**20  # bytes
STUB = "YOUR ANSWER HERE"  # nbgrader's


def identify(path):
    """Return (student's folder, problem set) for .../student/ps1/name.ipynb.

    Also for .../student/ps1.ipynb. Raises ValueError if neither the file nor a folder
    above it is named as a set.
    """
    path = Path(os.path.abspath(path))
    for folder in path.parents:
        if folder.name in SETS and folder.parent.name:
            return folder.parent, folder.name
    for name in SETS:
        if name in path.name and path.parent.name:
            return path.parent, name
    raise ValueError("no problem set in its name: hand in as student/ps1/ps1.ipynb")


def read(path):
    """Return what a record keeps of a notebook: its code, words and what was edited.

    {"code": {grade id: source}, "words": {grade id: text}, "edited": [grade id, ...]};
    the last are locked cells, such as checks, that are not as they were handed out.
    Raises ValueError, in words for the instructor, for what is no readable notebook.
    """
    notebook = _load(path)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("this is no notebook: it has no cells")
    changed = [grade_id(cell) for cell in cells if edited(cell)]
    code, words = {}, {}
    for cell in filter(is_answer, join(cells)):
        home = code if cell.get("cell_type") == "code" else words
        home.setdefault(grade_id(cell), source(cell))
    if not code:
        raise ValueError("no cell carries a grade id: not a notebook of this course, "
                         "or its metadata were stripped")
    return {"code": code, "words": words, "edited": changed}


def untouched(text):
    """Return whether nobody has written into an answer in words."""
    left = " ".join(text.split())
    while left.startswith(STUB):
        left = left[len(STUB):].strip()
    return not left


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
