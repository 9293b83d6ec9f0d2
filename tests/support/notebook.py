"""A notebook as a learner runs it: the first cell, answers, magics and all.

    answers_of   the answers to an exercise that a cell defines, among the solutions
"""

import contextlib
import io
import json
import sys

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from manual_dp.school.exercise import find
from tests.support.answers import EXERCISES, cells_of


class Shell(InteractiveShell):
    """IPython without a window."""

    def enable_gui(self, gui=None):
        """Open no window."""


def answers_of(name, cell):
    """Run a notebook up to the exercise called `name`, with `cell` as its answer.

    Raises what the cell itself raises; what it prints or displays is dropped.
    """
    problem_set, exercise = name.partition("/")[0], find(name)
    main = sys.modules["__main__"]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            shell = _shell()
            _run(shell, _first(problem_set))
            for grade_id, source in cells_of(problem_set).items():
                last = grade_id == exercise.cells[-1]
                _run(shell, cell if last else source)
                if last:
                    break
        finally:
            sys.modules["__main__"] = main
    return [shell.user_ns[answer] for answer in exercise.answers]


def _shell():
    quiet = Config()
    quiet.HistoryManager.enabled = False
    return Shell(config=quiet)


def _run(shell, source):
    shell.run_cell(source, store_history=False).raise_error()


def _first(problem_set):
    path = EXERCISES / "source" / problem_set / f"{problem_set}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
