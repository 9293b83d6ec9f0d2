"""The answers that tests hand in: solutions from the source notebooks, wrong ones.

    EXERCISES, READY, ALL   where notebooks lie; the problem sets; all exercises
    WRONG                   {exercise: {mistake: answer cell}}
    HINTS                   {exercise: {mistake: how the hint begins, or None}}
    cells_of                the answer cells of a source notebook
    define                  the answers to an exercise that its cells define
"""

import importlib
import json
import linecache
from pathlib import Path

from manual_dp.school.exercise import SETS, exercises
from tests.support.wrong import apart, edges

EXERCISES = Path(__file__).parents[2] / "notebooks" / "exercises"
READY = [name for name in SETS if (EXERCISES / "source" / name).is_dir()]
ANSWERS = {f"{name}/{exercise}": wrong for name in READY for exercise, wrong in
           importlib.import_module(f"tests.support.wrong.{name}").ANSWERS.items()}
for name, mistakes in edges.ANSWERS.items():
    ANSWERS[name] = {**ANSWERS[name], **mistakes}
WRONG, HINTS = apart(ANSWERS)
ALL = [name for problem_set in READY for name in exercises(problem_set)]


def cells_of(problem_set):
    """Return the answer cells of the source notebook, by grade id."""
    path = EXERCISES / "source" / problem_set / f"{problem_set}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["metadata"]["nbgrader"]["grade_id"]: "".join(cell["source"])
            for cell in cells if cell["cell_type"] == "code"
            and cell["metadata"]["nbgrader"]["solution"]}


def define(name, change=None):
    """Run the cells of an exercise, `change`d; return the answers it defines."""
    problem_set = name.partition("/")[0]
    exercise = exercises(problem_set)[name]
    given = importlib.import_module(f"manual_dp.school.{problem_set}.run")
    space = dict(given.START, __name__="__main__")
    for grade_id, source in (cells_of(problem_set) | (change or {})).items():
        if grade_id in exercise.cells:
            file = f"<cell {grade_id} {abs(hash(source))}>"
            linecache.cache[file] = len(source), None, source.splitlines(True), file
            exec(compile(source, file, "exec"), space)
    return [space[answer] for answer in exercise.answers]
