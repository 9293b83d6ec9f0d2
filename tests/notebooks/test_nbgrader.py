"""Problem set 1 goes through nbgrader, by the very commands of the exercises' README.

Two learners hand in, and each exercise of theirs is a case of its own. It takes half a
minute on an idle machine: only nbgrader itself can say what it makes of a cell.
"""

import copy
import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.utils import determine_grade

EXERCISES = Path(__file__).parents[2] / "notebooks" / "exercises"
README = (EXERCISES / "README.md").read_text()


def notebook(folder):
    return nbformat.read(EXERCISES / folder / "ps1" / "ps1.ipynb", 4)


def cells(nb):
    return {
        cell.metadata.nbgrader.grade_id: cell
        for cell in nb.cells
        if "nbgrader" in cell.metadata
    }


def solved():
    """Return what was handed out, with the solutions written into it."""
    nb, source = notebook("release"), cells(notebook("source"))
    for name, cell in cells(nb).items():
        if cell.metadata.nbgrader.solution:
            cell.source = re.sub(
                r" *### (BEGIN|END) SOLUTION\n?", "", source[name].source
            )
    return nb


CHECKS = {
    name: cell.metadata.nbgrader.points
    for name, cell in cells(solved()).items()
    if cell.metadata.nbgrader.grade and cell.cell_type == "code"
}
ANSWERS = [name.removeprefix("check_") for name in CHECKS]
ONE, TWO, THREE, FOUR, FIVE = ANSWERS[:5]
WORDS = sum(
    cell.metadata.nbgrader.points
    for cell in cells(solved()).values()
    if cell.metadata.nbgrader.grade and cell.cell_type == "markdown"
)


def place(nb, name):
    return nb.cells.index(cells(nb)[name])


def copied(cell, name):
    again = copy.deepcopy(cell)
    again.id = name
    return again


def added(nb, where, source):
    nb.cells.insert(where, nbformat.v4.new_code_cell(source))


LOUD = """
import functools, sys, warnings
from tqdm import tqdm

def loudly(function):
    @functools.wraps(function)
    def same(*args, **kwargs):
        warnings.warn("this is a warning")
        print("and this is none", file=sys.stderr)
        print(*tqdm(range(3)))
        return function(*args, **kwargs)
    return same

{name} = loudly({name})
"""


def honest():
    """Solutions that warn and print, with magics, in cells that were split or copied."""
    nb = solved()
    one, two, three, _, five = (
        cells(nb)[name] for name in (ONE, TWO, THREE, FOUR, FIVE)
    )
    one.source += LOUD.format(name=ONE)
    five.source = f"%%time\n{five.source}\n{LOUD.format(name=FIVE)}\n!ls"
    lines = two.source.splitlines()
    for part, text in (two, lines[:2]), (copied(two, "half"), lines[2:]):
        part.source = "\n".join(text)
    nb.cells.insert(place(nb, TWO) + 1, part)  # split inside of the function
    old = copied(three, "old")
    old.source = f"def {THREE}(an old attempt"
    nb.cells.insert(place(nb, THREE), old)
    again = copied(cells(nb)[f"check_{FOUR}"], "again")
    nb.cells.insert(place(nb, f"check_{FOUR}"), again)
    added(nb, place(nb, FOUR), "import manual_dp, gc\n1 / 0  # tries something")
    return nb


def faulty():
    """An own import whose check was edited, no Python, no check, tricks, nothing written, and
    a task whose answer and check are deleted, as are the words."""
    nb, blank = solved(), cells(notebook("release"))
    patch = "import course.school.checks as checks\nchecks.check = lambda *a, **k: 0"
    cells(nb)[ONE].source = f"%%time\nfrom manual_dp import {ONE}"
    cells(nb)[f"check_{ONE}"].source = f"print('ps1/{ONE}: right')"
    cells(nb)[TWO].source += "\nx = = 3"
    nb.cells.pop(place(nb, f"check_{THREE}"))
    cells(nb)[FOUR].source = f"{FOUR} = None\n{patch}"
    for name in ANSWERS[4:]:
        cells(nb)[name].source = blank[name].source
    added(nb, place(nb, FIVE), f"check = lambda *args, **kwargs: None\n{patch}")
    for name in (FIVE, f"check_{FIVE}", "words"):
        nb.cells.pop(place(nb, name))
    added(nb, 0, "from elsewhere import what_is_not_there")
    nb.cells[0].metadata.nbgrader = {
        **cells(nb)[FOUR].metadata.nbgrader,
        "grade_id": "of_another_release",
    }
    return nb


def right_in_parts(path):
    """Let one hidden check end in half of its points, as checks of ps7 do."""
    source = nbformat.read(path, 4)
    check = cells(source)[f"check_{FOUR}"]
    half = check.metadata.nbgrader.points / 2
    check.source = check.source.replace("### END", f"{half}\n### END")
    nbformat.write(source, path)


HONEST = "Anna O'Neil"  # names of the learning platforms
HANDED_IN = {HONEST: honest, "faulty": faulty}


def commands():
    block = re.search(r"^ +nbgrader generate_assignment.*\n( {4}.+\n)+", README, re.M)
    return [line.strip() for line in block[0].splitlines()]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The course's folder, copied, after an instructor's commands: folder, what was said.

    What is handed out is made here, from the source alone.
    """
    home = tmp_path_factory.mktemp("home")
    folder = home / "exercises"
    shutil.copytree(
        EXERCISES,
        folder,
        ignore=shutil.ignore_patterns(
            "release",
            "downloaded",
            "submitted",
            "autograded",
            "feedback",
            "gradebook.db",
            "*.csv",
            "ps[!1]",
        ),
    )
    right_in_parts(folder / "source" / "ps1" / "ps1.ipynb")
    for learner, make in HANDED_IN.items():
        (folder / "submitted" / learner / "ps1").mkdir(parents=True)
        nbformat.write(make(), folder / "submitted" / learner / "ps1" / "ps1.ipynb")
    # an environment that is not activated: the settings find what nbgrader calls
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))
    }
    (home / "bin").mkdir()
    for name in "nbgrader", "python":
        script = home / "bin" / name
        module = "-m nbgrader" if name == "nbgrader" else ""
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    environment |= {
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{home / 'bin'}:{os.defpath}",
    }
    said = {}
    for line in commands():
        done = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stderr
        said[re.search(r"nbgrader (\w+)|(\w+)\.py", line)[0]] = (
            done.stdout + done.stderr
        )
    return folder, said


def earned(course, learner):
    """Return the points for each answer, and the rows of our table agree."""
    folder, _ = course
    nb = nbformat.read(folder / "autograded" / learner / "ps1" / "ps1.ipynb", 4)
    points = {
        name.removeprefix("check_"): determine_grade(cells(nb)[name])[0]
        for name in CHECKS
    }
    with open(folder / "grades.csv", newline="", encoding="utf-8") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert float(rows[learner]["checks"]) == sum(points.values())
    assert float(rows[learner]["of"]) == sum(CHECKS.values()) + WORDS
    return points


def page(course, learner):
    return (course[0] / "feedback" / learner / "ps1" / "ps1.html").read_text()


ALL = {name.removeprefix("check_"): points for name, points in CHECKS.items()}
ALL[FOUR] /= 2  # the check says so


def test_warnings_prints_bars_magics_and_split_cells_cost_nothing(course):
    # and a check that ends in half of its points gives half: partial points
    assert earned(course, HONEST) == ALL
    said = page(course, HONEST)
    for name in ANSWERS:
        assert f"ps1/{name}: right" in said
    assert "not run: this is not an answer cell" in said
    assert "ZeroDivisionError" not in said


def test_what_is_wrong_gets_nothing_and_a_sentence_and_what_is_right_its_points(course):
    assert earned(course, "faulty") == {**dict.fromkeys(ANSWERS, 0), THREE: ALL[THREE]}
    said = page(course, "faulty")
    for sentence in (
        "not graded: it imports more of manual_dp than the first cell does",
        "SyntaxError",
        f"ps1/{THREE}: right",
        f"ps1/{FIVE} is not written yet",
        "not graded: it imports more of course than the first cell does",
        "not run: this is not an answer cell",
    ):
        assert sentence in said
    assert f"ps1/{ONE}: right" not in said


def test_only_a_cell_that_somebody_edited_is_said_to_have_changed(course):
    said = course[1]["nbgrader autograde"]
    assert re.findall(r"for cell (\w+) has changed", said) == [f"check_{ONE}"]


def test_what_to_teach_again_names_the_mistakes(course):
    said = course[1]["mistakes.py"]
    assert re.search(rf"^1 of 2 +{TWO} +SyntaxError", said, re.M)
    assert re.search(rf"^1 of 2 +{ONE} +not graded: it imports more", said, re.M)
    *_, last = re.findall(r"^\d of \d .*", said, re.M)
    assert "not written yet" in last
