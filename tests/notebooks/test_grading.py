"""notebooks/exercises: what is joined, counted, collected and told, without a kernel.

test_nbgrader.py shows that nbgrader does all of it to a notebook that was handed in.
"""

import json
import os
import re
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import mistakes  # notebooks/exercises, which pyproject.toml puts on the path
import nbformat
import pytest
from collect import collect
from grading import (
    NOT_RUN,
    TEXT_ELSEWHERE,
    Execute,
    JoinCells,
    OverwriteCells,
    SayWhatIsMissing,
    no_copy,
    not_judged,
    without_points,
)
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader import preprocessors
from nbgrader.api import Gradebook
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution
from page import NO_TOTAL, total
from table import Table

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "notebooks" / "exercises"

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


def test_a_notebook_whose_cells_lost_their_marks_is_not_graded_and_a_line_says_why(
    tmp_path,
):
    nb, place = new_notebook(cells=[new_code_cell(WHOLE)]), tmp_path / "ps1.ipynb"
    place.write_text(nbformat.writes(nb))
    with pytest.raises(ValueError, match="lost their marks") as caught:
        JoinCells().preprocess(nb, {"nbgrader": {"notebook": "ps1"}})
    assert no_copy(place) == str(caught.value)


# what is put back


class Book:
    """What nbgrader's gradebook knows of a set's notebook; sqlite needs 4 s for it."""

    def __init__(self, nb):
        self.source_cells = [
            SimpleNamespace(
                name=cell.metadata.nbgrader.grade_id,
                cell_type=cell.cell_type,
                source=cell.source,
                locked=is_locked(cell),
                checksum=cell.metadata.nbgrader.checksum,
                max_score=cell.metadata.nbgrader.get("points"),
            )
            for cell in nb.cells
        ]
        both = list(zip(nb.cells, self.source_cells))
        self.grade_cells = [known for cell, known in both if is_grade(cell)]
        self.solution_cells = [known for cell, known in both if is_solution(cell)]

    def find_notebook(self, *names):
        return self


SETS = sorted(path.stem for path in (EXERCISES / "release").glob("*/*.ipynb"))


@pytest.mark.parametrize("name", SETS)
def test_every_locked_code_cell_that_was_deleted_is_put_back_at_its_place(name):
    def look(nb):
        keys = "grade_id", "grade", "solution", "locked", "points"
        return [
            (cell.cell_type, *(cell.metadata["nbgrader"].get(key) for key in keys))
            for cell in nb.cells
        ]

    whole = nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", 4)
    code = [cell for cell in whole.cells if cell.cell_type == "code"]
    locked = [cell for cell in code if is_locked(cell)]
    assert "import check" in locked[0].source
    step = OverwriteCells()
    step.gradebook, step.notebook_id, step.assignment_id = Book(whole), name, name
    for cell in locked:
        left = [one for one in whole.cells if one is not cell]
        nb, _ = step.add_missing_grade_cells(nbformat.NotebookNode(cells=left), {})
        assert look(nb) == look(whole), "another place, or other points"
        back = nb.cells[whole.cells.index(cell)]
        assert back.source.startswith("# This cell (id:")
        assert back.source.endswith(cell.source)
        alone = nbformat.NotebookNode(cells=[back])
        preprocessors.CheckCellMetadata().preprocess(alone, {})


@pytest.mark.parametrize(
    "own, kept", [("import numpy as np", True), ("x = 1", True), ("# mine", False)]
)
def test_what_gives_a_name_in_a_locked_cell_is_kept_below_it(monkeypatch, own, kept):
    def put_back(self, cell, resources, index):
        cell.source = "import torch"
        return cell, resources

    monkeypatch.setattr(preprocessors.OverwriteCells, "preprocess_cell", put_back)
    text, step = f"import torch\n{own}", OverwriteCells()
    cell = marked(text, "setup", solution=False, asked="import torch")
    step.edited = {}
    step.preprocess_cell(cell, {"nbgrader": {"student": "al"}}, 0)
    assert step.edited == ({"setup": text} if kept else {})


# what to teach again


def a_check(name, *, error=None, said="", value=None, kind="Wrong"):
    cell = marked(f"check({name})", f"check_{name}", solution=False)
    cell.execution_count = 1
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
        ({}, {"error": "ps1/x is not checked to the end.\nThe machine is busy"}, []),
        (
            {},
            {"error": "ps1/x does not come to an end.\nIt has computed for 30 s"},
            ["it does not come to an end"],
        ),
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
        (
            {},
            {
                "said": "ps5/x is right in parts.\n1 of 2 points: the clue is right, "
                "the repair is not yet.\ngot     1\nwanted  2\n",
                "value": "1",
            },
            ["the clue is right, the repair is not yet."],
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


# what has no points, and not 0 points

BUSY = {"error": "ps1/sgd is not checked to the end.\nThe machine is busy"}
ENDLESS = {"error": "ps1/x does not come to an end.\nIt has computed for 30 s"}
SLOW = {"ename": "CellTimeoutError"}
STOPPED = {"ename": "Stopped", "evalue": "its cell ends the kernel"}


def not_run(name):
    cell = a_check(name)
    cell.execution_count = None
    return cell


@pytest.mark.parametrize(
    "cells, whys",
    [
        ([an_answer("sgd"), a_check("sgd", said="right")], {}),
        ([an_answer("sgd"), a_check("sgd", error=HINT)], {}),
        (
            [a_check("sgd", **BUSY), a_check("sum", said="right")],
            {"check_sgd": "not checked to the end"},
        ),
        # a cell that was interrupted: it may be the machine
        (
            [an_answer("sgd", **SLOW), a_check("sgd", **NOT_DEFINED), a_check("sum")],
            {"check_sgd": "a cell was interrupted after its seconds"},
        ),
        ([an_answer("a", **SLOW), a_check("sgd"), a_check("sum", **BUSY)], "both"),
        # a kernel that has ended: what was checked before it stands
        (
            [a_check("sgd", said="right"), an_answer("sum", **STOPPED), not_run("sum")],
            {"check_sum": "its cell ends the kernel"},
        ),
        ([not_run("sgd")], {"check_sgd": "not graded yet, or cut short"}),
    ],
)
def test_a_check_that_came_to_no_judgement_has_no_points(cells, whys):
    found = without_points(new_notebook(cells=cells))
    assert found == whys or whys == "both" and [*found] == ["check_sgd", "check_sum"]


@pytest.mark.parametrize("said", ["", "RankError: rank 1: NameError: "])
@pytest.mark.parametrize(
    "given",
    ["def helper(p):\n    return p", "import numpy as helper", "helper = 3"],
)
def test_a_helper_in_a_cell_that_is_not_run_is_the_reason_for_a_0(said, given):
    nb = new_notebook(
        cells=[
            new_code_cell(f"{NOT_RUN}\n{given}"),
            new_code_cell(f"{NOT_RUN}\nprint(help)\nf(a=1, a=2)"),
            an_answer("sgd"),
            a_check("sgd", error=f"{said}name 'helper' is not defined"),
            a_check("sum", error="name 'help' is not defined"),
        ]
    )
    assert not_judged(nb) == {"check_sgd": "helper stands in a cell that is not run"}


def test_an_answer_below_its_own_cell_is_the_reason_for_a_0():
    blank = "ps1/sgd is not written yet: its cell still raises NotImplementedError."
    nb = new_notebook(
        cells=[
            an_answer("sgd"),
            new_code_cell(f"{NOT_RUN}\ndef sgd(p):\n    return p"),
            a_check("sgd", error=blank),
            a_check("sum", error=blank.replace("sgd", "sum")),
        ]
    )
    assert not_judged(nb) == {"check_sgd": "sgd stands in a cell that is not run"}


def test_an_answer_in_the_cell_of_another_is_the_reason_for_a_0():
    blank = "ps1/sgd is not written yet: its cell still raises NotImplementedError."
    nb = new_notebook(
        cells=[
            marked("def sum(p):\n    return 0\n\ndef sgd(p):\n    return p"),
            a_check("sum", said="right"),
            marked("def sgd(p):\n    raise NotImplementedError"),
            a_check("sgd", error=blank),
        ]
    )
    assert not_judged(nb) == {"check_sgd": "sgd stands in another answer's cell, too"}


def words(text, handed_out="YOUR ANSWER HERE"):
    cell = new_markdown_cell(handed_out)
    cell.metadata["nbgrader"] = {
        "grade_id": "words",
        "grade": True,
        "solution": True,
        "locked": False,
        "points": 4,
        "cell_type": "markdown",
        "schema_version": 3,
    }
    cell.metadata.nbgrader["checksum"] = compute_checksum(cell)
    cell.source = text
    return cell


@pytest.mark.parametrize(
    "answer, own, why",
    [
        ("YOUR ANSWER HERE", "The mean.", {"words": TEXT_ELSEWHERE}),
        ("YOUR ANSWER HERE", " \n", {}),
        ("The mean.", "A note of mine.", {}),
    ],
)
def test_words_in_a_cell_of_the_students_own_wait_for_a_reader(answer, own, why):
    cells = [words(answer), new_markdown_cell(own)]
    assert without_points(new_notebook(cells=cells)) == why


def interrupted(name):
    cell = an_answer(name, "KeyboardInterrupt")
    cell.outputs += an_answer(name, **SLOW).outputs
    return cell


BROKEN = {"ename": "SyntaxError", "evalue": "'(' was never closed (123.py, line 7)"}
RENAMED = "class Help:\n    pass\n\ndef SGD(p):\n    pass"


@pytest.mark.parametrize(
    "cells, said",
    [
        (
            [marked(RENAMED), a_check("sgd", **NOT_DEFINED)],
            "your cell defines Help, SGD; the check asks for sgd",
        ),
        (
            [an_answer("sgd", **BROKEN), a_check("sgd", **NOT_DEFINED)],
            "SyntaxError: '(' was never closed",
        ),
        # nbgrader interrupts a cell; Python's own words for it come first
        (
            [interrupted("sgd"), a_check("sgd", **NOT_DEFINED)],
            "your answer's cell did not come to its end, and was interrupted: look for "
            "a loop in it that never ends",
        ),
        # nothing is known: Python's words stay
        ([marked("# gone"), a_check("sgd", **NOT_DEFINED)], NOT_DEFINED["error"]),
        # it was moved into a cell that is not run: the table's reason
        (
            [
                new_code_cell(f"{NOT_RUN}\ndef sgd(p): pass"),
                marked(RENAMED),
                a_check("sgd", **NOT_DEFINED),
            ],
            NOT_DEFINED["error"],
        ),
        # a name that the answer's own lines need
        (
            [
                marked("def sum(p):\n    return sgd"),
                a_check("sum", **NOT_DEFINED),
            ],
            NOT_DEFINED["error"],
        ),
    ],
)
def test_a_check_that_misses_the_answers_name_says_what_the_cell_has(cells, said):
    nb, _ = SayWhatIsMissing().preprocess(new_notebook(cells=cells), {})
    [output] = nb.cells[-1].outputs
    assert output.evalue == said
    if said != NOT_DEFINED["error"]:
        assert output.traceback == [said]
        # a check without points is no mistake
        taught = [] if without_points(nb) else [("sgd", said)]
        assert mistakes.reasons(nb) == taught


def test_an_exercise_that_counts_0_needs_no_reason_and_no_reader():
    def grade(name, kind, points):
        return SimpleNamespace(
            name=name,
            cell=SimpleNamespace(cell_type=kind),
            max_score=points,
            score=0,
            auto_score=None if kind == "markdown" else 0,
            manual_score=None,
            needs_manual_grade=False,
        )

    def reason(points):
        names = {"check_sgd": "code", "check_sum": "code", "words": "markdown"}
        grades = [grade(name, kind, points) for name, kind in names.items()]
        row = {"days_late": 0, "checks": "", "words": "", "total": ""}
        Table()._fill(
            row,
            SimpleNamespace(notebooks=[SimpleNamespace(grades=grades)]),
            {"check_sum": "cut short"},
            {"sgd": "the answer cell was deleted"},
            dict.fromkeys(names, points),
        )
        return row["total"], row["reason"]

    deleted, unread = "sgd: the answer cell was deleted", "nobody has read it yet"
    assert reason(2) == ("", f"{deleted}; sum: cut short; words: {unread}")
    assert reason(0) == (0, "")


@pytest.mark.parametrize(
    "error, printed, why",
    [
        (DeadKernelError("Kernel died"), "", "ends the kernel"),
        (CellTimeoutError("no reply"), "", "does not end, nor when it is told to"),
        (CellTimeoutError("no output"), "x" * 2_000_000, "prints too much: 2 MB"),
    ],
)
def test_a_notebook_that_cannot_be_run_says_why_in_the_cell(
    monkeypatch, error, printed, why
):
    def run(self, nb, resources):
        self.at = nb.cells[0]
        self.at.outputs = [new_output("stream", text=printed)]
        raise error

    monkeypatch.setattr(preprocessors.Execute, "preprocess", run)
    nb = new_notebook(cells=[an_answer("sgd"), not_run("sgd")])
    nb, _ = Execute().preprocess(nb, {})
    assert why in without_points(nb)["check_sgd"]
    assert sum(len(str(cell.outputs)) for cell in nb.cells) < 1000


@pytest.mark.parametrize(
    "cells, wanted",
    [
        ([an_answer("sgd", **SLOW), a_check("sgd"), a_check("sum")], [400, 60, 60]),
        # its check stops a function: the cell below it may call it again
        ([an_answer("sgd"), a_check("sgd", **ENDLESS), a_check("x")], [400, 400, 60]),
        ([a_check("sgd", **BUSY), a_check("sgd"), a_check("x")], [400] * 3),
    ],
)
def test_after_an_endless_cell_the_others_get_less_time_and_the_next_notebook_all(
    monkeypatch, cells, wanted
):
    seconds = []

    def run(self, cell, resources, index):
        seconds.append(self.timeout)
        return cell, resources

    monkeypatch.setattr(preprocessors.Execute, "preprocess_cell", run)
    monkeypatch.setattr(
        preprocessors.Execute,
        "preprocess",
        lambda self, nb, resources: [
            self.preprocess_cell(cell, resources, i) for i, cell in enumerate(nb.cells)
        ],
    )
    nb = new_notebook(cells=cells)
    step = Execute(timeout=400)
    assert step.error_on_timeout["ename"] == SLOW["ename"]
    assert "was interrupted" in step.error_on_timeout["traceback"][0]
    for _ in range(2):
        step.preprocess(nb, {})
    assert seconds == wanted * 2


def test_who_has_no_points_is_listed_with_the_reason(tmp_path):
    (tmp_path / "bo.ipynb").write_text('{"cells": [')
    marked_one = new_notebook(cells=[an_answer("sgd")])
    (tmp_path / "di.ipynb").write_text(nbformat.writes(marked_one))
    handed_in = {name: tmp_path / f"{name}.ipynb" for name in ("al", "bo", "cy", "di")}
    graded = {"al": new_notebook(cells=[a_check("sgd", **BUSY), a_check("sum")])}
    by_hand = {"al": {"sum": 0}}  # also a 0 is known
    graded["al"].cells[1].execution_count = None
    assert mistakes.ungraded(handed_in, graded, by_hand) == [
        "no points yet  al: sgd: not checked to the end",
        "no points yet  bo: it cannot be read: Notebook does not appear to be JSON",
        "no points yet  cy: there is no notebook of this name",
        "no points yet  di: not graded yet, or autograde ended in an error: run it again "
        "to see",
    ]


def test_who_handed_in_the_same_code_is_listed_and_blank_ones_are_not():
    def answers(*texts, words):
        code = [marked(text, f"a{i}") for i, text in enumerate(texts)]
        return new_notebook(cells=[*code, marked(words, "words", "markdown")])

    blank = "# YOUR CODE HERE\nraise NotImplementedError()"
    graded = {
        "al": answers("def sgd(p): p -= 1", blank, words="mine"),
        "bo": answers("def sgd(p): p -= 2", blank, words="mine"),
        "cy": answers("def sgd(p): p -= 1", blank, words="my own"),
        "di": answers(blank, blank, words="mine"),
        "ed": answers(blank, blank, words="mine"),
    }
    assert mistakes.same(graded) == ["the same code  al, cy: all that they wrote"]


# the sentence at the top of a learner's page


@pytest.mark.parametrize(
    "numbers, said",
    [
        ({"total": 17.0}, "You have 17 of 19 points: 14.5 for code and 2.5 for words."),
        (
            {"total": 15.3, "penalty": 1.7},
            "You have 15.3 of 19 points: 14.5 for code and 2.5 for words, less 1.7 "
            "because your set came late.",
        ),
        ({"total": "", "words": ""}, NO_TOTAL),
    ],
)
def test_a_learner_reads_the_total_or_that_there_is_none_yet(numbers, said):
    row = {"checks": 14.5, "words": 2.5, "penalty": 0.0, "of": 19.0}
    assert total(row | numbers) == said


# what a learning platform hands over


def zipped(folder, name, members):
    """Write a zip with these members: {file name: (day of October, text)}."""
    place = folder / "downloaded" / "ps1"
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place / name, "w") as file:
        for member, (day, text) in members.items():
            info = zipfile.ZipInfo(member, (2026, 10, day, 12, 0, 0))
            file.writestr(info, text)


def handed_in(folder):
    """Return {student: (text, id, time)} of what was collected."""
    return {
        place.parent.name: (
            (place / "ps1.ipynb").read_text(),
            json.loads((place / "handed_in.json").read_text())["lms_user_id"],
            (place / "timestamp.txt").read_text()
            if (place / "timestamp.txt").exists()
            else None,
        )
        for place in sorted(folder.glob("submitted/*/ps1"))
    }


DUE = datetime(2026, 10, 5, 22)


def test_a_hand_in_is_stored_with_its_students_id_and_when_it_came(tmp_path):
    zipped(
        tmp_path,
        "all.zip",
        {
            "muelleranna_98123_1234567_ps1.ipynb": (9, "in time"),
            "schmidtben_LATE_98124_1234568_ps1-1.ipynb": (9, "late"),
            "Anna Müller_1234_assignsubmission_file/my ps1.ipynb": (9, "Moodle"),
            "chen_98125_1234569_ps2.ipynb": (4, "another set"),
            "__MACOSX/._muelleranna_98123_1234567_ps1.ipynb": (4, "no notebook"),
        },
    )
    lines = collect("ps1", tmp_path, DUE)
    assert handed_in(tmp_path) == {
        # both zips have the time at which they were made, and so say nothing
        "muelleranna": ("in time", "98123", None),
        "schmidtben": ("late", "98124", "2026-10-05 22:00:01"),
        "Anna Müller": ("Moodle", "1234", None),
    }
    assert lines[-1].startswith("Moodle's zip does not say when")
    assert [line for line in lines if line.startswith("skipped")] == [
        f"skipped    {name}: by its name no notebook of ps1; if it is one, put it "
        "there by hand: submitted/NAME/ps1/ps1.ipynb"
        for name in (
            "chen_98125_1234569_ps2.ipynb",
            "__MACOSX/._muelleranna_98123_1234567_ps1.ipynb",
        )
    ]


def test_what_is_skipped_is_named_once_and_what_is_new_is_named(tmp_path):
    def named():
        lines = collect("ps1", tmp_path)
        return [line.split(":")[0] for line in lines if line.startswith("skipped")]

    zipped(tmp_path, "a.zip", {"al_1_10_notes.pdf": (4, "al's")})
    assert named() == ["skipped    al_1_10_notes.pdf"]
    assert named() == ["skipped    1 that an earlier run has named"]
    again = {"al_1_10_notes.pdf": (9, "al's"), "bo_2_11_notes.pdf": (9, "bo's")}
    zipped(tmp_path, "b.zip", again)
    assert named() == [
        "skipped    bo_2_11_notes.pdf",
        "skipped    1 that an earlier run has named",
    ]
    zipped(tmp_path, "b.zip", {"bo_2_11_notes.pdf": (9, "another file")})
    assert named()[0] == "skipped    bo_2_11_notes.pdf"


def test_without_a_due_date_a_late_hand_in_has_the_time_of_its_zip(tmp_path):
    zipped(tmp_path, "all.zip", {"al_LATE_1_1_ps1.ipynb": (9, "late")})
    collect("ps1", tmp_path)
    assert handed_in(tmp_path)["al"][2].startswith("2026-10-09 12:00:00")


def test_moodles_files_are_found_in_each_of_its_forms(tmp_path):
    file = "assignsubmission_file"
    zipped(
        tmp_path,
        "all.zip",
        {
            f"Al B_1_{file}/ps1.ipynb": (4, "al's"),
            f"Bo_2_{file}/homework/one/my_PS1_final.ipynb": (4, "bo's"),
            f"Cy_3_{file}_ps1.ipynb": (4, "cy's"),
            f"Di_4_{file}_/ps1.ipynb": (4, "di's"),
            f"ps1-all/Ed_5_{file}/ps1.ipynb": (4, "ed's"),
            f"ps1-all/Ed_5_{file}/Al B_1_{file}/ps1.ipynb": (9, "no file of al's"),
            f"Flo_6_{file}/ps2.ipynb": (4, "another set"),
        },
    )
    lines = collect("ps1", tmp_path)
    assert {who: found[:2] for who, found in handed_in(tmp_path).items()} == {
        "Al B": ("al's", "1"),
        "Bo": ("bo's", "2"),
        "Cy": ("cy's", "3"),
        "Di": ("di's", "4"),
        "Ed": ("ed's", "5"),
    }
    assert [line for line in lines if line.startswith(("two", "skip"))] == [
        f"skipped    Flo_6_{file}/ps2.ipynb: by its name no notebook of ps1; if it is "
        "one, put it there by hand: submitted/NAME/ps1/ps1.ipynb",
        f"two files  Ed: took ps1.ipynb, left Al B_1_{file}/ps1.ipynb",
    ]


def test_moodles_second_zip_has_newer_times_and_what_is_the_same_stays(tmp_path):
    al, bo = (f"{who}_assignsubmission_file/ps1.ipynb" for who in ("Al_1", "Bo_2"))
    zipped(tmp_path, "a.zip", {al: (4, "al's"), bo: (4, "bo's first")})
    collect("ps1", tmp_path)
    place = tmp_path / "submitted" / "Al" / "ps1"
    (place / "ps1.ipynb").write_text("repaired")
    (place / "timestamp.txt").write_text("2026-10-06 09:30:00")
    zipped(tmp_path, "b.zip", {al: (9, "al's"), bo: (9, "bo's second")})
    assert collect("ps1", tmp_path)[:2] == ["was there  Al", "newer      Bo"]
    assert handed_in(tmp_path) == {
        "Al": ("repaired", "1", "2026-10-06 09:30:00"),
        "Bo": ("bo's second", "2", None),
    }
    assert {line.split()[0] for line in collect("ps1", tmp_path)[:2]} == {"was"}


def test_points_by_hand_go_with_the_hand_in_for_which_they_were_given(
    tmp_path, monkeypatch
):
    # nbgrader starts alembic by its name
    beside = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", os.pathsep.join([beside, os.environ["PATH"]]))
    first = {"al_1_10_ps1.ipynb": (4, "al's"), "bo_2_11_ps1.ipynb": (4, "bo's")}
    zipped(tmp_path, "a.zip", first)
    collect("ps1", tmp_path)
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}", "manual_dp") as book:
        for name in "ps1", "ps2":
            book.add_assignment(name)
            book.add_notebook(name, name)
            book.add_grade_cell("words", name, name, max_score=4, cell_type="markdown")
        for name, who in (("ps1", "al"), ("ps1", "bo"), ("ps2", "bo")):
            book.update_or_create_student(who)
            book.add_submission(name, who)
            grade = book.find_grade("words", name, name, who)
            grade.manual_score, grade.needs_manual_grade = 3, False
        book.db.commit()
    newer = {
        f"{who}_LATE_{i}_2{i}_ps1.ipynb": (9, who) for who, i in (("bo", 2), ("cy", 3))
    }
    zipped(tmp_path, "b.zip", newer)
    lines = collect("ps1", tmp_path, DUE)  # cy has nothing in the gradebook
    assert lines == [
        "was there  al",
        "newer      bo, late",
        "gone       bo's points by hand, for the older hand-in: words 3. Give them again "
        "in Formgrader if they still hold",
        "new        cy, late",
    ]
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}", "manual_dp") as book:
        left = [
            (name, one.student.id, one.score)
            for name in ("ps1", "ps2")
            for one in book.assignment_submissions(name)
        ]
    assert left == [("ps1", "al", 3), ("ps2", "bo", 3)]


def test_a_second_zip_adds_to_the_first_and_a_repair_stays(tmp_path):
    zipped(
        tmp_path,
        "all.zip",
        {"al_1_10_ps1.ipynb": (4, "al's"), "bo_2_11_ps1.ipynb": (4, "bo's first")},
    )
    collect("ps1", tmp_path)
    (tmp_path / "submitted" / "al" / "ps1" / "ps1.ipynb").write_text("repaired")
    made = [tmp_path / name / "bo" / "ps1" for name in ("autograded", "feedback")]
    for place in made:
        place.mkdir(parents=True)
    late = {
        "al_1_10_ps1.ipynb": (9, "al's"),
        "bo_LATE_2_12_ps1.ipynb": (9, "bo's second"),
        "cy_LATE_3_13_ps1.ipynb": (9, "cy's"),
    }
    zipped(tmp_path, "late.zip", late)
    lines = collect("ps1", tmp_path, DUE)
    assert lines == ["was there  al", "newer      bo, late", "new        cy, late"]
    assert [text for text, *_ in handed_in(tmp_path).values()] == [
        "repaired",
        "bo's second",
        "cy's",
    ]
    # no points of the first for the second, and no page
    assert not any(place.exists() for place in made)
    assert {line.split()[0] for line in collect("ps1", tmp_path, DUE)} == {"was"}


def test_two_students_of_one_name_are_two_and_stay_so(tmp_path):
    zipped(
        tmp_path,
        "all.zip",
        {"wei_7_10_ps1.ipynb": (4, "one"), "wei_5_11_ps1.ipynb": (4, "other")},
    )
    collect("ps1", tmp_path)
    first = handed_in(tmp_path)
    zipped(tmp_path, "a.zip", {"wei_LATE_7_12_ps1.ipynb": (9, "one, later")})
    collect("ps1", tmp_path, DUE)
    assert {who: id for who, (_, id, _) in first.items()} == {"wei": "5", "wei-7": "7"}
    assert handed_in(tmp_path)["wei"] == first["wei"]
    assert handed_in(tmp_path)["wei-7"][0] == "one, later"


def test_of_two_files_in_one_zip_the_one_with_the_sets_name_is_taken(tmp_path):
    moodle = "Tom B_5_assignsubmission_file_/"
    zipped(
        tmp_path,
        "all.zip",
        {
            f"{moodle}ps1.ipynb": (4, "tom's"),
            f"{moodle}ps1_old.ipynb": (4, "tom's old"),
            "al_1_10_ps1-1.ipynb": (4, "al's"),
            "al_1_11_ps1_try.ipynb": (4, "al's try"),
            "bo_2_12_my_ps1.ipynb": (4, "bo's first"),
            "bo_2_13_my_ps1-2.ipynb": (4, "bo's second"),
        },
    )
    lines = collect("ps1", tmp_path)
    assert [line for line in lines if line.startswith("two")] == [
        "two files  Tom B: took ps1.ipynb, left ps1_old.ipynb",
        "two files  al: took ps1-1.ipynb, left ps1_try.ipynb",
        "two files  bo: took my_ps1-2.ipynb, left my_ps1.ipynb",
    ]
    assert [text for text, *_ in handed_in(tmp_path).values()] == [
        "tom's",
        "al's",
        "bo's second",
    ]


@pytest.mark.parametrize("record", [None, {"lms_user_id": "1"}])
def test_what_was_put_there_by_hand_is_left(tmp_path, record):
    place = tmp_path / "submitted" / "al" / "ps1"
    place.mkdir(parents=True)
    (place / "ps1.ipynb").write_text("by hand")
    if record:  # the number, which an instructor wrote beside it
        (place / "handed_in.json").write_text(json.dumps(record))
    zipped(tmp_path, "all.zip", {"al_1_10_ps1.ipynb": (4, "al's")})
    assert collect("ps1", tmp_path) == ["left       al, which was put there by hand"]
    assert (place / "ps1.ipynb").read_text() == "by hand"


# strangers' answers


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


def test_the_image_has_what_checks_import_and_little_more():
    text = (EXERCISES / "Dockerfile").read_text()
    [installed] = re.findall(r"--editable \. \\\n +(.+)\n", text)
    assert installed.split() == ["ipykernel", "matplotlib", "scikit-learn"]
    assert "://" not in text  # no index is named, but by its reader


def test_a_kernel_in_a_container_ends_though_nbgrader_has_lost_it():
    [_, _, command, *_] = json.loads(
        (EXERCISES / "docker" / "kernel.json").read_text()
    )["argv"]
    assert re.search(r"manual_dp timeout --kill-after \d+ \d+ python -m ipyk", command)
