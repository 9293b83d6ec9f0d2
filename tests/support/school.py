"""The answers that tests of exercises hand in, and how a cell becomes functions.

SETS, NAMES             the sets and the exercises that there are
WRONG, RIGHT            {exercise: {hint: cell}}, {exercise: {style: cell}}
define                  the answers that cells define, after a notebook's first
solution, in_notebook   those of the source notebook; of a cell with magics
told                    what a check says of them: None, or the hint
soon                    run_ranks without a long wait for ranks that hang
no_limit                a fixture: a check may take its time
"""

import contextlib
import functools
import importlib
import io
import json
import linecache
import pkgutil
import random
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.nn import functional as F
from traitlets.config import Config

import manual_dp
from course.school import checks
from course.school.checks import Wrong, check, find
from manual_dp import ranks
from manual_dp.parallel import gather, parallel_apply, replicate
from manual_dp.ranks import run_ranks
from tests.course.school import right, wrong
from tests.course.school.right import TEMPLATES
from tests.course.school.wrong import filled, tables

SOURCE = Path(__file__).parents[2] / "notebooks" / "exercises" / "source"
FILES = [info.name for info in pkgutil.iter_modules(wrong.__path__)]
for _file in FILES:
    importlib.import_module(f"course.school.{_file}")
NAMES = list(checks.EXERCISES)
SETS = [file for file in FILES if file in checks.SETS]


WRONG = {
    name: {hint: filled(name, cell, changes) for hint, changes in mistakes.items()}
    for name, (cell, mistakes) in TEMPLATES.items()
}
STYLES = tables(right, "RIGHT")
RIGHT = {
    name: {
        "what wrong ones are made of": filled(name, cell, {}),
        **STYLES.get(name, {}),
    }
    for name, (cell, _) in TEMPLATES.items()
}


@functools.cache
def _cells(problem_set):
    path = SOURCE / problem_set / f"{problem_set}.ipynb"
    return [
        cell
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


def _text(cell):
    return "".join(cell["source"])


def points(problem_set):
    """Return the points that a notebook's cells give: {exercise: points}."""
    metas = [cell["metadata"]["nbgrader"] for cell in _cells(problem_set)]
    return {
        f"{problem_set}/{meta['grade_id'].removeprefix('check_')}": meta["points"]
        for meta in metas
        if meta["grade"] and not meta["solution"]
    }


def _answer_cells(problem_set):
    return [
        _text(cell)
        for cell in _cells(problem_set)
        if cell["metadata"]["nbgrader"]["solution"]
    ]


@functools.cache
def _given(folder):
    """Return the names that a learner finds: of a set's first cell, or in a lesson."""
    space = {"__name__": "__main__"}
    if folder in checks.SETS:
        _run(re.sub(r"(?m)^\s*[%!].*$", "", _text(_cells(folder)[0])), space)
        return space
    return {
        **space,
        "torch": torch,
        "dist": dist,
        "nn": nn,
        "F": F,
        **{
            word: getattr(module, word)
            for module in (ranks, manual_dp)
            for word in module.__all__
        },
        **{part.__name__: part for part in (replicate, parallel_apply, gather)},
    }


def _run(cell, space):
    file = f"<cell {abs(hash(cell))}>"
    linecache.cache[file] = len(cell), None, cell.splitlines(True), file
    exec(compile(cell, file, "exec"), space)


def define(name, *cells):
    """Return the answers to an exercise that cells define, run one after another."""
    space = dict(_given(name.partition("/")[0]))
    for cell in cells:
        _run(cell, space)
    return [space[answer] for answer in find(name).answers]


def solution(name):
    """Return the answers of the source notebook."""
    return define(name, *_answer_cells(name.partition("/")[0]))


class _Shell(InteractiveShell):
    """IPython without a window."""

    def enable_gui(self, gui=None):
        """Open no window."""


def in_notebook(name, cell):
    """Return the answers that a cell defines in a notebook, magics and all."""
    quiet, main = Config(), sys.modules["__main__"]
    quiet.HistoryManager.enabled = False
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            shell = _Shell(config=quiet)
            folder = name.partition("/")[0]
            first = [_text(_cells(folder)[0])] if folder in checks.SETS else []
            shell.user_ns.update({} if first else _given(folder), __name__="__main__")
            for source in [*first, cell]:
                shell.run_cell(source, store_history=False).raise_error()
        finally:
            sys.modules["__main__"] = main
    return [shell.user_ns[answer] for answer in find(name).answers]


def told(name, answers, seed=0):
    """Return what `check` says of the answers: None if right, "" if no hint."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            if check(name, *answers, draws=random.Random(seed)) is None:
                return None
            message = out.getvalue().partition("\nNote: ")[0].strip()
        except Wrong as error:
            message = str(error)
    return message.partition("\nperhaps ")[2]


def soon(*args, timeout, **kwargs):
    """Run ranks for two seconds at most: long enough for who waits in vain."""
    return run_ranks(*args, timeout=min(2, timeout), **kwargs)


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """Let a check take its time on a busy machine."""
    monkeypatch.setattr(checks, "limit", lambda seconds: contextlib.nullcontext())
