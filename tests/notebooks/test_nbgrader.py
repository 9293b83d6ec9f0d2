"""A class hands in set 1: from Canvas' zips to learners' pages and the table of points.

The commands are those of the exercises' README. It takes 40 s of a processor:
only nbgrader itself can say what it makes of a cell, and of a kernel that has ended.
"""

import atexit
import contextlib
import copy
import csv
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import keep_points  # notebooks/exercises, on the path as table is
import nbformat
import nbgrader.apps  # noqa: F401, once, before the forks
import pytest
from grading import TEXT_ELSEWHERE  # notebooks/exercises, on the path as table is
from nbgrader.api import Gradebook
from nbgrader.utils import determine_grade
from table import Table  # notebooks/exercises, which pyproject.toml puts on the path

EXERCISES = Path(__file__).parents[2] / "notebooks" / "exercises"
README = (EXERCISES / "README.md").read_text()


def notebook(folder):
    """Return set 1 without the cell that trains, which has no points."""
    nb = nbformat.read(EXERCISES / folder / "ps1" / "ps1.ipynb", 4)
    nb.cells = [cell for cell in nb.cells if cell.id != "train"]
    return nb


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


BUSY = f"""
class Wrong(AssertionError):
    pass

def {ONE}(*args):
    raise Wrong("ps1/{ONE} is not checked to the end.\\nThe machine is busy")
"""


def honest():
    """Solutions that warn and print, with magics, in cells that were split or copied; the
    first cell is deleted."""
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
    nb.cells.pop(place(nb, "setup"))
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


def ended():
    """A check that a busy machine does not bring to its end, an end of the kernel, and
    words in the cell of their question."""
    nb, blank = solved(), cells(notebook("release"))
    cells(nb)["words"].source = blank["words"].source
    cells(nb)["words-task"].source += "\nThe mean of the means."
    cells(nb)[ONE].source += BUSY
    cells(nb)[TWO].source += f"\nimport os\ndef {TWO}(*args):\n    os._exit(1)"
    return nb


def unmarked():
    """Right answers, through a program that takes the cells' metadata away."""
    nb = solved()
    for cell in nb.cells:
        cell.metadata = {}
    return nb


def right_in_parts():
    """Return the source; one hidden check ends in half of its points, as some of ps7 do."""
    source = notebook("source")
    half, slow = (cells(source)[f"check_{name}"] for name in (FOUR, FIVE))
    points = half.metadata.nbgrader.points / 2
    half.source = half.source.replace("### END", f"{points}\n### END")
    slow.source = slow.source.partition("### BEGIN")[0]  # once is enough
    return source


HONEST = "Anna O'Neil"  # names of the learning platforms
# what the platform's zips hold: a newer zip brings what came later
FIRST = {HONEST: honest, "faulty_LATE": faulty}
SECOND = {"ended": ended, "torn": None, "unmarked": unmarked}  # None: no notebook
NUMBERS = {HONEST: "98101", "faulty": "98102", "ended": "98201", "torn": "98202"}
NUMBERS["unmarked"] = "98203"


def hand_in(folder, number, learners):
    """Put a zip, as Canvas makes it, where collect.py looks for it."""
    place = folder / "downloaded" / "ps1"
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place / f"{number}.zip", "w") as file:
        for i, (who, make) in enumerate(learners.items(), 1):
            text = nbformat.writes(make()) if make else '{"cells": ['
            file.writestr(f"{who}_98{number}0{i}_{number}_ps1.ipynb", text)


def commands():
    """Return README's commands to collect, to grade and to tell."""
    blocks = re.findall(r"^ +nbgrader (?:db|generate).*\n(?: {4}.+\n)+", README, re.M)
    return [line.strip() for line in "".join(blocks).splitlines()]


def in_a_fork(line, folder, environment):
    """Run a command in a fork, which has imported torch; return its status and words."""

    def run():
        atexit._clear()  # a fork must not remove its parent's folders
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        file = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
        program, *words = shlex.split(line)
        try:
            if program == "nbgrader":
                sys.argv = [program, *words]
                runpy.run_module(program, run_name="__main__")
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        finally:
            atexit._run_exitfuncs()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(800)
    process.kill()
    return process.exitcode, (folder / "said").read_text()


def in_a_shell(line, folder, environment):
    """Run a line as somebody types it: each nbgrader is a Python of its own."""
    done = subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=800,
    )
    return done.returncode, done.stdout + done.stderr


def surroundings(home):
    """Return an environment that is not activated: the settings find what nbgrader calls."""
    (home / "bin").mkdir()
    script = home / "bin" / "nbgrader"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nbgrader "$@"\n')
    script.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))
    }
    return kept | {
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{home / 'bin'}:{os.defpath}",
    }


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The course's folder, copied, after an instructor's commands: folder, what was said.

    What is handed out is made here, from the source alone.
    """
    home = tmp_path_factory.mktemp("home")
    folder = home / "exercises"
    shutil.copytree(
        EXERCISES, folder, ignore=shutil.ignore_patterns("ps*", "*.db*", "*.csv")
    )
    (folder / "source" / "ps1").mkdir()
    nbformat.write(right_in_parts(), folder / "source" / "ps1" / "ps1.ipynb")
    environment, said = surroundings(home), {}

    def run(line, start=in_a_fork, wanted=0):
        status, words = start(line, folder, environment)
        assert status == wanted, words
        said[re.search(r"nbgrader (\w+)|(\w+)\.py", line)[0]] = words

    due, collect, generate, autograde, *rest = commands()
    hand_in(folder, 1, FIRST)
    for line in due, collect, generate:
        run(line)
    run(autograde, in_a_shell)
    hand_in(folder, 2, SECOND)
    run(collect)
    first = said["nbgrader autograde"]
    # of all that is new; one is no notebook, and one has no marks
    run("nbgrader autograde ps1", wanted=1)
    said["nbgrader autograde"] += first
    for line in rest:
        run(line)
    return folder, said


def rows(folder):
    """Return {student: row} of the table of points."""
    with open(folder / "grades.csv", newline="", encoding="utf-8") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def earned(course, learner):
    """Return the points for each answer, and the rows of our table agree."""
    folder, _ = course
    nb = nbformat.read(folder / "autograded" / learner / "ps1" / "ps1.ipynb", 4)
    points = {
        name.removeprefix("check_"): determine_grade(cells(nb)[name])[0]
        for name in CHECKS
    }
    row = rows(folder)[learner]
    assert float(row["checks"]) == sum(points.values())
    assert float(row["of"]) == sum(CHECKS.values()) + WORDS
    return points


def page(course, learner):
    return (course[0] / "feedback" / learner / "ps1" / "ps1.html").read_text()


ALL = {name.removeprefix("check_"): points for name, points in CHECKS.items()}
ALL[FOUR] /= 2  # the check says so
WHYS = [  # why ended's checks have no points
    f"{ONE}: not checked to the end",
    f"{', '.join(ANSWERS[1:])}: its cell ends the kernel: os._exit, or no memory is left?",
]
TORN = "it cannot be read: Notebook does not appear to be JSON"
UNMARKED = "its cells lost their marks: copy its answers into a fresh ps1.ipynb and grade it anew"


def test_warnings_prints_bars_magics_and_split_cells_cost_nothing(course):
    # and a check that ends in half of its points gives half: partial points
    assert earned(course, HONEST) == ALL
    said = page(course, HONEST)
    for name in ANSWERS:
        assert f"ps1/{name}: right" in said
    for name, heading in (
        (f"check_{TWO}", "1.2 Shards of given sizes"),
        ("words", "1.7 In words"),
    ):
        assert f'<a href="#{name}">{heading}</a> (Score' in said
    assert said.count("You have no total yet") == 1  # nobody has read the words
    assert "Test cell" not in said and "Written response" not in said
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
    assert "HIDDEN TESTS" not in said
    assert "is not defined" not in said  # a check repeats why its answer did not run


def test_only_a_cell_that_somebody_edited_is_said_to_have_changed(course):
    said = course[1]["nbgrader autograde"]
    found = re.findall(r"for cell ([\w-]+) of (\w+) has changed", said)
    assert found == [("words-task", "ended"), (f"check_{ONE}", "faulty")]


def test_each_command_ends_with_what_to_say_next(course):
    said = {command.split()[-1]: words for command, words in course[1].items()}
    for command, then in {
        "collect.py": "nbgrader generate_assignment ps1 --force, then nbgrader autograde",
        "generate_assignment": "nbgrader autograde ps1",
        "autograde": "when all are graded, nbgrader generate_feedback ps1",
        "generate_feedback": "nbgrader export",
        "export": "python mistakes.py ps1; 5 have no total in ps1",
        "mistakes.py": "give points for words",
    }.items():
        assert f"Next: {then}" in said[command], command


def test_what_to_teach_again_and_what_has_no_points_are_listed_apart(course):
    said = course[1]["mistakes.py"]
    assert re.search(rf"^1 of 3 +{TWO} +SyntaxError", said, re.M)
    assert re.search(rf"^1 of 3 +{ONE} +not graded: it imports more", said, re.M)
    *_, last = re.findall(r"^\d of \d .*", said, re.M)
    assert "not written yet" in last
    assert re.findall(r"^no points yet +(.*)", said, re.M) == [
        *(f"ended: {why}" for why in [*WHYS, f"words: {TEXT_ELSEWHERE}"]),
        f"torn: {TORN}",
        f"unmarked: {UNMARKED}",
    ]


# the table of points


def gradebook(folder):
    return Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "manual_dp")


def by_hand(course, learner, **points):
    """Give points as a person does in Formgrader."""
    with gradebook(course[0]) as book:
        for name, number in points.items():
            grade = book.find_grade(name, "ps1", "ps1", learner)
            grade.manual_score, grade.needs_manual_grade = number, False
        book.db.commit()


def table(course, **settings):
    """Export as `nbgrader export` does; return {student: row}."""
    with contextlib.chdir(course[0]), gradebook(course[0]) as book:
        Table(**settings).export(book)
    return rows(course[0])


def test_what_nobody_can_know_yet_is_empty_with_a_reason_and_never_0(course):
    found = rows(course[0])  # by `nbgrader export`
    unread = "words: nobody has read it yet"
    assert {
        who: (row["checks"], row["total"], row["reason"]) for who, row in found.items()
    } == {
        HONEST: ("14.0", "", unread),
        "faulty": ("3.0", "", found["faulty"]["reason"]),  # most of its checks: 0
        "ended": ("", "", "; ".join([*WHYS, f"words: {TEXT_ELSEWHERE}"])),
        "torn": ("", "", TORN),
        "unmarked": ("", "", UNMARKED),
    }
    assert {who: row["lms_user_id"] for who, row in found.items()} == NUMBERS
    assert set(found["faulty"]["reason"].split("; ")) == {
        *(
            f"{name}: not graded: it imports more of {course} than the first cell does, "
            "and an answer is your own"
            for name, course in ((ONE, "manual_dp"), (FOUR, "course"))
        ),
        f"{FIVE}: the answer cell was deleted: see the page",
        unread,
    }
    by_hand(course, "faulty", **{f"check_{FIVE}": 0})
    assert FIVE not in table(course)["faulty"]["reason"]


def test_points_by_hand_fill_the_gaps_also_with_0(course):
    for learner in HONEST, "ended":
        by_hand(course, learner, words=3)
    found = table(course)
    assert (found[HONEST]["total"], found[HONEST]["reason"]) == ("17.0", "")
    assert (found["ended"]["total"], found["ended"]["words"]) == ("", "3.0")
    by_hand(course, "ended", **dict.fromkeys(CHECKS, 0))
    row = table(course)["ended"]
    assert (row["checks"], row["total"]) == ("0.0", "3.0")


def test_points_by_hand_that_were_graded_anew_hold_if_somebody_says_so(course):
    by_hand(course, HONEST, words=3)
    by_hand(course, "ended", words=2)
    with gradebook(course[0]) as book:  # as autograde marks what has points by hand
        for learner in HONEST, "ended":
            book.find_grade("words", "ps1", "ps1", learner).needs_manual_grade = True
        book.db.commit()
    marked = "words: points by hand, and graded anew since"
    assert table(course)[HONEST]["reason"] == marked
    with gradebook(course[0]) as book:
        assert keep_points.keep(book, "ps1", ["ended"]) == ["kept  ended: words 2"]
    assert table(course)[HONEST]["reason"] == marked
    with gradebook(course[0]) as book:
        assert keep_points.keep(book, "ps1", []) == [f"kept  {HONEST}: words 3"]
    row = table(course)[HONEST]
    assert (row["total"], row["reason"]) == ("17.0", "")


def test_what_a_late_day_costs_is_of_the_points_that_stand_when_one_exports(course):
    for words, total in ((3, 5.4), (1, 3.6)):
        by_hand(course, "faulty", words=words)
        found = table(course, percent_a_day=10)
        assert (found["faulty"]["days_late"], found["faulty"]["total"]) == (
            "1",
            str(total),
        )
        assert (found[HONEST]["days_late"], found[HONEST]["total"]) == ("0", "17.0")


def test_a_late_hand_in_of_a_set_without_a_due_date_is_told(course):
    with gradebook(course[0]) as book:
        book.find_assignment("ps1").duedate = None
        book.db.commit()
    row = table(course, percent_a_day=10)["faulty"]
    assert (row["days_late"], row["penalty"]) == ("0", "0.0")
    assert row["reason"].endswith("; late, but the set has no due date")


def test_who_was_graded_with_other_points_has_no_total_until_graded_anew(course):
    def worth(points):
        """Give a check points, as generate_assignment does for a set that was changed."""
        with gradebook(course[0]) as book:
            book.find_grade_cell(f"check_{TWO}", "ps1", "ps1").max_score = points
            book.db.commit()

    before = table(course)[HONEST]
    worth(CHECKS[f"check_{TWO}"] + 4)
    row = table(course)[HONEST]
    worth(CHECKS[f"check_{TWO}"])
    assert (row["checks"], row["total"]) == ("", "")
    assert row["words"] == before["words"] != ""
    assert row["reason"] == f"{TWO}: graded with other points: grade the class anew"
    assert table(course)[HONEST] == before


def test_a_copy_that_was_not_run_to_its_end_has_no_points_of_an_earlier_run(course):
    path = course[0] / "autograded" / HONEST / "ps1" / "ps1.ipynb"
    nb = nbformat.read(path, 4)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    path.chmod(0o644)
    nbformat.write(nb, path)
    row = table(course)[HONEST]
    assert (row["checks"], row["total"]) == ("", "")
    assert row["reason"] == f"{', '.join(ANSWERS)}: not graded yet, or cut short"
