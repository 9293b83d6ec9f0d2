"""What the exercises are called and ask: read from what is handed out."""

import functools
import json
import re

from manual_dp.school.exercise import exercises, questions
from manual_dp.school.grader.cells import grade_id, source
from manual_dp.school.grader.paths import PACKAGE

FOLDER = PACKAGE.parent / "notebooks" / "exercises" / "release"


@functools.cache
def titles(problem_set):
    """Return {name: (title, text of the task)} for a set's exercises and questions.

    A name is "ps1/sgd", a title "1.4 A step". Where the package was installed without
    its notebooks there are none.
    """
    path = FOLDER / problem_set / f"{problem_set}.ipynb"
    if not path.is_file():
        return {}
    names = {cell: name for name, exercise in exercises(problem_set).items()
             for cell in exercise.cells[-1:]}
    names |= {cell: f"{problem_set}/{cell}" for cell in questions(problem_set)}
    found, title, task = {}, "", ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = source(cell)
        if grade_id(cell) in names:
            found[names[grade_id(cell)]] = title, task
        elif heading := re.match(r"##+ (.+?)( \(\d.*\))?\n", text):
            title, task = heading[1], text[heading.end():].strip()
    return found
