"""course/school/lint.py: what an answer may not do, by its text alone."""

from pathlib import Path

import nbformat
import pytest

from course.school.lint import refusal
from tests.support.school import RIGHT, SETS

EXERCISES = Path(__file__).parents[3] / "notebooks" / "exercises"
FIRST = """%matplotlib inline
import torch
import torch.distributed as dist
from torch.nn import functional as F
from manual_dp import lenet, loss
from course import check
"""

GRADED = {
    "what the first cell gives": "from manual_dp import lenet, loss",
    "by another way": "from manual_dp.lenet import loss",
    "a magic": "%%time\n%matplotlib inline\n!ls\ndef f():\n    return 1",
    "a name like check's": "def f(x):\n    check = x\n    return check",
    "names like those that end the kernel": "def f(exit):\n    quit = 3\n"
    "    return exit + quit",
    "a model's own words": "net.eval()\nfor m in net.modules():\n    m.weight = None",
    "torch's settings": "with torch.no_grad():\n    p.grad = None",
    "no Python": "def f(:",
    "no Python, though it parses": "def f(a, a):\n    return a",
    "another language": "%%bash\necho import gc",
}
REFUSED = {
    "imports more of manual_dp": [
        "import manual_dp.train as t",
        "%time from manual_dp import sgd",
        "%%capture\n%%time\nfrom manual_dp import sgd",
        "def f():\n    from manual_dp.train import sgd",
    ],
    "imports more of course": ["from course import school"],
    "imports gc": ["import torch, gc"],
    "imports importlib": ["from importlib import import_module"],
    "imports inspect": ["import inspect as i"],
    "imports ctypes": ["import ctypes"],
    "imports builtins": ["from builtins import exec as run"],
    "uses f_back": ["frame.f_back"],
    "uses exec": ["exec('check = 1')"],
    "uses __globals__": ["loss.__globals__['x'] = 1"],
    "uses globals": ["globals()['x']"],
    "uses exit, which ends": ["f = lambda b, c: exit()"],
    "uses quit, which ends": [
        "def f():\n    quit()",
        "def f():\n    quit = 3\n\ndef g():\n    quit()",
        "stop = quit",
    ],
    "uses sys.modules": ["import sys\nsys.modules['x'] = 1"],
    "defines check anew": [
        "def f():\n    global check\n    check = print",
        "%%time\ncheck = print",
        "from numpy import sum as check",
    ],
    "changes torch.nn.functional.relu": ["torch.nn.functional.relu = print"],
    "changes dist": ["setattr(dist, 'all_reduce', print)"],
}


@pytest.mark.parametrize("name", GRADED)
def test_an_answer_may_do_what_others_do(name):
    assert refusal(GRADED[name], FIRST) is None


@pytest.mark.parametrize(
    "why, source",
    [(why, source) for why, sources in REFUSED.items() for source in sources],
)
def test_an_answer_that_is_not_its_own_is_refused_with_a_reason(why, source):
    assert f"it {why}" in refusal(source, FIRST)


def first_cell(name):
    nb = nbformat.read(EXERCISES / "source" / name / f"{name}.ipynb", 4)
    return next(cell.source for cell in nb.cells if cell.cell_type == "code")


@pytest.mark.parametrize("problem_set", SETS)
def test_no_right_answer_in_another_style_is_refused(problem_set):
    first = first_cell(problem_set)
    styles = [
        text
        for name, cells in RIGHT.items()
        for text in cells.values()
        if name.startswith(f"{problem_set}/")
    ]
    assert len(styles) >= 12
    assert [refusal(text, first) for text in styles if refusal(text, first)] == []
