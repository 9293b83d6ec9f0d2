"""A class hands in: from Canvas' zip to the table of points, with what cannot be graded.

Problem set 1 is cut down to its first exercise and its words, so that it takes half a
minute: only nbgrader itself can say what becomes of a kernel that has ended.
"""

import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from table import Table

EXERCISES = Path(__file__).parents[2] / "notebooks" / "exercises"
FIRST, CHECK = "largest_difference", "check_largest_difference"
BUSY = f"""
class Wrong(AssertionError):
    pass

def {FIRST}(*args):
    raise Wrong("ps1/{FIRST} is not checked to the end.\\nThe machine is busy")
"""
ANSWERS = {  # {who hands in: what stands below the solution; None: no notebook}
    "al": "",
    "bo": f"import os\ndef {FIRST}(*args):\n    os._exit(1)",
    "cy": BUSY,
    "di": None,
    "ed": f"def {FIRST}(*args):\n    return -1.0",
    "fy": "",
}


def grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def short_source():
    """Return set 1 with its first cell, its first exercise and its words."""
    nb = nbformat.read(EXERCISES / "source" / "ps1" / "ps1.ipynb", 4)
    code = next(cell for cell in nb.cells if cell.cell_type == "code")
    answer = next(cell for cell in nb.cells if f"def {FIRST}(" in cell.source)
    words = next(cell for cell in nb.cells if grade_id(cell) == "words")
    check = next(cell for cell in nb.cells if grade_id(cell) == CHECK)
    nb.cells = [code, answer, check, words]
    return nb


def handed_in(nb, below):
    """Return the text of the set, solved, with something below the first answer."""
    if below is None:
        return nbformat.writes(nb)[:1000]
    for cell in nb.cells:
        cell.source = re.sub(r" *### (BEGIN|END) SOLUTION\n?", "", cell.source)
    nb.cells[1].source += f"\n{below}"
    nb.cells[3].source = "Two ranks wait."
    return nbformat.writes(nb)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course's folder in which set 1 was collected and graded."""
    folder = tmp_path_factory.mktemp("class") / "exercises"
    shutil.copytree(
        EXERCISES, folder, ignore=shutil.ignore_patterns("ps*", "*.db*", "*.csv")
    )
    for place in "source/ps1", "downloaded/ps1":
        (folder / place).mkdir(parents=True)
    nbformat.write(short_source(), folder / "source" / "ps1" / "ps1.ipynb")
    with zipfile.ZipFile(folder / "downloaded" / "ps1" / "all.zip", "w") as file:
        for i, (who, below) in enumerate(ANSWERS.items()):
            late = "_LATE" if who == "fy" else ""
            name = f"{who}{late}_{98100 + i}_{1234 + i}_ps1.ipynb"
            file.writestr(name, handed_in(short_source(), below))
    run(
        folder,
        "-m",
        "nbgrader",
        "db",
        "assignment",
        "add",
        "ps1",
        "--duedate=2026-10-01",
    )
    run(folder, "collect.py", "ps1")
    run(folder, "-m", "nbgrader", "generate_assignment", "ps1", "--force")
    run(folder, "-m", "nbgrader", "autograde", "ps1", status=1)  # di's is no notebook
    return folder


def run(folder, *words, status=0):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | {"HOME": str(folder), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=1500,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def table(folder, **settings):
    """Export as `nbgrader export` does; return {student: row}."""
    with contextlib.chdir(folder), gradebook(folder) as book:
        Table(**settings).export(book)
    return rows(folder)


def rows(folder):
    with open(folder / "grades.csv", newline="", encoding="utf-8") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def gradebook(folder):
    return Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "manual_dp")


def by_hand(folder, cell, points):
    """Give points as a person does in Formgrader."""
    with gradebook(folder) as book:
        for who, number in points.items():
            grade = book.find_grade(cell, "ps1", "ps1", who)
            grade.manual_score, grade.needs_manual_grade = number, False
        book.db.commit()


def test_no_total_is_there_before_a_person_has_read_the_words(course):
    run(course, "-m", "nbgrader", "export")
    found = rows(course)
    assert {row["total"] for row in found.values()} == {""}
    assert found["al"]["checks"] == "2.0"
    assert found["al"]["reason"] == "words: nobody has read it yet"


def test_what_could_not_be_graded_is_empty_with_a_reason_and_never_0(course):
    by_hand(course, "words", {"al": 3, "bo": 3, "cy": 3, "ed": 3, "fy": 3})
    found = table(course)
    told = {
        who: (row["checks"], row["total"], row["reason"].partition(": ")[2])
        for who, row in found.items()
    }
    assert told == {
        "al": ("2.0", "5.0", ""),
        "bo": ("", "", "its cell ends the kernel: os._exit, or no memory is left?"),
        "cy": ("", "", "not checked to the end"),
        "di": ("", "", "Notebook does not appear to be JSON"),
        "ed": ("0.0", "3.0", ""),  # an earned 0
        "fy": ("2.0", "5.0", ""),
    }
    ids = {who: str(98100 + i) for i, who in enumerate(ANSWERS)}
    assert {who: row["lms_user_id"] for who, row in found.items()} == ids


def test_what_a_late_day_costs_is_of_the_points_that_stand_when_one_exports(course):
    for words, total in ((3, 4.5), (1, 2.7)):
        by_hand(course, "words", {"al": 3, "fy": words})
        found = table(course, percent_a_day=10)
        assert (found["fy"]["days_late"], found["fy"]["total"]) == ("1", str(total))
        assert (found["al"]["days_late"], found["al"]["total"]) == ("0", "5.0")


def test_points_by_hand_fill_the_gap(course):
    by_hand(course, CHECK, {"bo": 1})
    by_hand(course, "words", {"bo": 3})
    assert table(course)["bo"]["total"] == "4.0"


def test_mistakes_and_what_has_no_points_are_listed_apart(course):
    said = run(course, "mistakes.py", "ps1").splitlines()
    assert re.match(rf"1 of 5  {FIRST}  ", said[0])
    assert said[1:] == [
        f"no points yet  bo: {FIRST}: its cell ends the kernel: os._exit, or no "
        "memory is left?",
        f"no points yet  cy: {FIRST}: not checked to the end",
        "no points yet  di: it cannot be read: Notebook does not appear to be JSON",
    ]


def test_a_late_hand_in_of_a_set_without_a_due_date_is_told(course):
    with gradebook(course) as book:
        book.find_assignment("ps1").duedate = None
        book.db.commit()
    row = table(course, percent_a_day=10)["fy"]
    assert (row["days_late"], row["penalty"]) == ("0", "0.0")
    assert row["reason"] == "late, but the set has no due date"


def test_a_copy_that_was_not_run_to_its_end_has_no_points_of_an_earlier_run(course):
    path = course / "autograded" / "al" / "ps1" / "ps1.ipynb"
    nb = nbformat.read(path, 4)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    path.chmod(0o644)
    nbformat.write(nb, path)
    row = table(course)["al"]
    assert (row["checks"], row["total"]) == ("", "")
    assert row["reason"] == f"{FIRST}: not graded yet, or cut short"
