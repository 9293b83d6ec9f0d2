"""notebooks/exercises: what is refused, joined, counted and collected, without a kernel.

test_nbgrader.py shows that nbgrader does all of it to a notebook that was handed in.
"""

import re
import subprocess
import sys
from pathlib import Path

import mistakes  # notebooks/exercises, which pyproject.toml puts on the path
import nbformat
import pytest
from grading import JoinCells
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.utils import compute_checksum

from course.school.lint import refusal
from tests.support.school import RIGHT, SETS

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "notebooks" / "exercises"
FIRST = """%matplotlib inline
import torch
import torch.distributed as dist
from torch.nn import functional as F
from manual_dp import lenet, loss
from course import check
"""

# what is refused

GRADED = {
    "what the first cell gives": "from manual_dp import lenet, loss",
    "by another way": "from manual_dp.lenet import loss",
    "a magic": "%%time\n%matplotlib inline\n!ls\ndef f():\n    return 1",
    "a name like check's": "def f(x):\n    check = x\n    return check",
    "a model's own words": "net.eval()\nfor m in net.modules():\n    m.weight = None",
    "torch's settings": "with torch.no_grad():\n    p.grad = None",
    "no Python": "def f(:",
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


# what is joined


def marked(source, name="sgd", kind="code", solution=True, asked=None):
    new = new_code_cell if kind == "code" else new_markdown_cell
    cell = new(source if asked is None else asked)
    grade = not solution or kind == "markdown"
    cell.metadata.nbgrader = {
        "schema_version": 3,
        "cell_type": kind,
        "grade_id": name,
        "grade": grade,
        "solution": solution,
        "locked": not solution,
        "task": False,
        **({"points": 2} if grade else {}),
    }
    cell.metadata.nbgrader = nbformat.from_dict(cell.metadata.nbgrader)
    cell.metadata.nbgrader.checksum = compute_checksum(cell)
    cell.source = source
    return cell


def joined(*cells):
    nb, _ = JoinCells().preprocess(new_notebook(cells=list(cells)), {})
    return [
        (cell.source, cell.metadata.get("nbgrader", {}).get("grade_id"))
        for cell in nb.cells
    ]


BLANK = "def sgd(p):\n    raise NotImplementedError()"
HELPER, WHOLE = "def helper(p):\n    return p", "def sgd(p):\n    helper(p)"


@pytest.mark.parametrize(
    "parts, whole",
    [
        ([HELPER, WHOLE], f"{HELPER}\n{WHOLE}"),
        (["def sgd(p):", "    helper(p)"], WHOLE),  # split inside of the function
        ([WHOLE, BLANK], WHOLE),
        ([BLANK, BLANK], BLANK),
        (["def sgd(p:", WHOLE], WHOLE),  # an old attempt that is not Python
        (["%time x = 1", WHOLE], f"%time x = 1\n{WHOLE}"),
        (["def sgd(p:", "return("], "def sgd(p:\nreturn("),
    ],
)  # Python says where
def test_the_parts_of_an_answer_are_one_answer(parts, whole):
    cells = [marked(part, asked=BLANK) for part in parts]
    assert joined(cells[0], new_code_cell("x"), *cells[1:]) == [
        (whole, "sgd"),
        ("x", None),
    ]


def test_an_answer_in_words_keeps_both_of_its_parts():
    parts = [
        marked(text, "words", "markdown", asked="YOUR ANSWER")
        for text in ("Two ranks wait.", "yes")
    ]
    assert joined(*parts) == [("Two ranks wait.\nyes", "words")]


def test_a_locked_cell_that_was_copied_counts_once():
    checks = [marked("check()", "check_sgd", solution=False) for _ in "ab"]
    assert joined(*checks) == [("check()", "check_sgd"), ("check()", None)]


# what to teach again


def a_check(name, *, error=None, said="", value=None, kind="Wrong"):
    cell = marked(f"check({name})", f"check_{name}", solution=False)
    if said:
        cell.outputs.append(new_output("stream", text=said))
    if error:
        cell.outputs.append(new_output("error", ename=kind, evalue=error, traceback=[]))
    if value is not None:
        cell.outputs.append(new_output("execute_result", {"text/plain": value}))
    return cell


def an_answer(name, ename=None, evalue=""):
    cell = marked(f"{name} = 1", name)
    if ename:
        cell.outputs.append(
            new_output("error", ename=ename, evalue=evalue, traceback=[])
        )
    return cell


NOT_DEFINED = {"error": "name 'sgd' is not defined", "kind": "NameError"}
HINT = "ps1/sgd is not right yet.\ngiven   lr {}\ngot     3\nwanted  4\nperhaps uphill by {}"


@pytest.mark.parametrize(
    "answer, check, reasons",
    [
        ({}, {"said": "ps1/sgd: right"}, []),
        ({}, {"error": HINT.format(2, 3)}, ["uphill by 3"]),
        (
            {},
            {"error": HINT.format(2, 3).partition("perhaps")[0]},
            ["wrong, in no way that has a hint"],
        ),
        (
            {},
            {"error": "ps1/sgd is not written yet: its cell ..."},
            ["not written yet"],
        ),
        ({}, {"error": "boom\nfar away", "kind": "ValueError"}, ["ValueError: boom"]),
        (
            {"ename": "SyntaxError", "evalue": "'(' was never closed (123.py, line 7)"},
            NOT_DEFINED,
            ["SyntaxError: '(' was never closed"],
        ),
        (
            {"ename": "AssertionError", "evalue": "not graded: it imports gc"},
            NOT_DEFINED,
            ["not graded: it imports gc"],
        ),
        ({"ename": "AssertionError", "evalue": "my own test"}, {"said": "right"}, []),
        (
            {},
            {"error": "perhaps got away: no mean; no sum"},
            ["got away: no mean", "got away: no sum"],
        ),
        # right in parts: the points are the value of the cell
        (
            {},
            {
                "said": "ps7/x is right in parts.\nperhaps got away: no mean\n",
                "value": "1.5",
            },
            ["got away: no mean"],
        ),
    ],
)
def test_a_reason_is_what_one_would_teach(answer, check, reasons):
    nb = new_notebook(cells=[an_answer("sgd", **answer), a_check("sgd", **check)])
    assert [why for _, why in mistakes.reasons(nb)] == reasons


def test_what_most_need_comes_first_and_what_is_not_written_last():
    blank = a_check("sum", error="ps1/sum is not written yet")
    notebooks = [
        new_notebook(cells=cells)
        for cells in (
            [blank],
            [blank],
            [blank, a_check("sgd", error=HINT.format(2, 3))],
            [
                a_check("sgd", error=HINT.format(5, 7)),
                a_check("sum", error="x", kind="E"),
            ],
        )
    ]
    assert mistakes.report(notebooks) == [
        "2 of 4  sgd  uphill by 3",
        "1 of 4  sum  E: x",
        "3 of 4  sum  not written yet",
    ]


# what a learning platform hands over


@pytest.mark.parametrize(
    "archive, student",
    [
        ("muelleranna_98123_1234567_ps1.ipynb", "muelleranna"),
        ("schmidtben_LATE_98124_1234568_ps1-1.ipynb", "schmidtben"),
        ("Anna Müller_1234_assignsubmission_file_/my ps1.ipynb", "Anna Müller"),
        ("Bo_1235_assignsubmission_file_/my_ps1_final.ipynb", "Bo"),
    ],
)
def test_file_names_of_canvas_and_moodle_say_whose_notebook_it_is(archive, student):
    config = (EXERCISES / "nbgrader_config.py").read_text()
    [pattern] = re.findall(r'named_regexp = \(\s+r"(.+)"\s+\)', config)
    found = re.match(pattern, f"/course/downloaded/ps1/extracted/all/{archive}")
    assert found.groupdict() == {"student_id": student, "file_id": "ps1"}


def test_what_was_downloaded_becomes_what_was_submitted(tmp_path):
    # some seconds: only nbgrader itself shows which settings it reads
    for name in "nbgrader_config.py", "grading.py":
        (tmp_path / name).write_bytes((EXERCISES / name).read_bytes())
    for name in "release/ps1/ps1.ipynb", "downloaded/ps1/archive/a_1_2_ps1-3.ipynb":
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    subprocess.run(
        [sys.executable, "-m", "nbgrader", "zip_collect", "ps1"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    assert (tmp_path / "submitted" / "a" / "ps1" / "ps1.ipynb").exists()


def test_the_image_has_every_package_that_is_installed():
    lines = (EXERCISES / "Dockerfile").read_text().splitlines()
    copied = {
        name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]
    }
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for path in [*ROOT.glob("*/__init__.py"), *ROOT.glob("notebooks/*/__init__.py")]
    } - {"tests"}
    assert packages <= copied and "pyproject.toml" in copied
