"""One gradebook over all sets: a row a student, a column a set, nothing lost.

No answer is run here: see tests/support/classroom.py.
"""

import json

import pytest

from manual_dp.school.exercise import SETS, exercises
from manual_dp.school.grader import grade as grade_module
from manual_dp.school.grader import journal as journal_module
from tests.support.answers import EXERCISES, READY

ALL = {name: sum(exercise.points for exercise in exercises(name).values())
       for name in SETS}
STRANGE = ["a,b;c", 'say "hi"', "M\u00fcller", "\u5f20\u4f1f", "=cmd()", "+1", "-1", "@x",
           "\t=1+1", "a\nb", "\uff1d1+1", " =1+1", "<b>", "O'Neill", "1-1", "name, first"]


# a row a student, a column a set

def test_a_row_a_student_and_a_column_a_set(classroom):
    paths = [classroom.hand_in("anna"), classroom.hand_in("anna", "ps2"),
             classroom.hand_in("ben", sgd="Uphill."), classroom.hand_in("ben", "ps2")]
    assert classroom.grade(*paths)[0] == 0
    table = classroom.table()
    assert [(name, row["ps1"], row["ps2"], row["total"]) for name, row in table.items()] == [
        ("anna", "15", "16", "31"), ("ben", "13", "16", "29")]


def test_the_sets_come_first_and_in_their_order_and_exercises_last(classroom):
    paths = [classroom.hand_in("anna", name) for name in reversed(SETS)]
    classroom.grade(*paths)
    head = list(classroom.table()["anna"])
    assert head[:len(SETS) + 4] == ["student", *SETS, "total", "max", "texts_to_read"]
    assert head[-1].startswith(f"{SETS[-1]}/") and "ps1/sgd" in head


def test_points_of_each_exercise_are_in_the_table(classroom):
    classroom.grade(classroom.hand_in("anna", sgd="Uphill."))
    row = classroom.table()["anna"]
    assert (row["ps1/sgd"], row["ps1/allreduce"]) == ("0", "3")


def test_a_set_that_was_not_handed_in_is_empty_and_not_0(classroom):
    classroom.grade(classroom.hand_in("anna"), classroom.hand_in("ben", "ps2"))
    table = classroom.table()
    assert (table["anna"]["ps1"], table["anna"]["ps2"]) == ("15", "")
    assert (table["ben"]["ps1"], table["ben"]["ps2"]) == ("", "16")
    assert table["anna"]["max"] == table["ben"]["max"]


@pytest.mark.parametrize("name", READY)
def test_the_maximum_is_nbgraders(classroom, name):
    source = json.loads((EXERCISES / "source" / name / f"{name}.ipynb").read_text())
    points = [cell["metadata"]["nbgrader"].get("points", 0) for cell in source["cells"]]
    classroom.grade(classroom.hand_in("anna", name))
    assert classroom.table()["anna"]["max"] == str(sum(points))
    assert sum(points) > ALL[name]


# one set after the other

def test_grading_another_set_keeps_what_was_graded(classroom):
    classroom.grade(classroom.hand_in("anna", sgd="Uphill."), classroom.hand_in("ben"))
    classroom.grade(classroom.hand_in("anna", "ps5"), "--html", "pages")
    table = classroom.table()
    assert (table["anna"]["ps1"], table["anna"]["ps5"]) == ("13", "20")
    assert (table["ben"]["ps1"], table["ben"]["ps5"]) == ("15", "")
    pages = classroom.pages()
    assert "ben" in pages["index.html"] and "Uphill." in pages["anna.html"]
    assert "ps5/" in pages["anna.html"] and "ps1/" in pages["ben.html"]


def test_grading_another_set_after_the_checks_changed_keeps_what_was_graded(
        classroom, monkeypatch):
    classroom.grade(classroom.hand_in("anna", sgd="Uphill."))
    monkeypatch.setattr(journal_module, "_checks", lambda: "new")
    classroom.grade(classroom.hand_in("anna", "ps2"))
    assert classroom.table()["anna"]["ps1"] == "13"


def test_one_learner_graded_anew_keeps_the_others(classroom):
    paths = [classroom.hand_in(name) for name in ("anna", "ben", "cleo")]
    classroom.grade(*paths)
    classroom.grade(classroom.hand_in("ben", sgd="Uphill."))
    assert [row["ps1"] for row in classroom.table().values()] == ["15", "13", "15"]


def test_the_last_hand_in_counts_also_if_it_is_an_older_one_again(classroom):
    path = classroom.hand_in("anna")
    classroom.grade(path)
    classroom.grade(classroom.hand_in("anna", sgd="Uphill."))
    assert classroom.table()["anna"]["ps1"] == "13"
    classroom.grade(classroom.hand_in("anna"))
    classroom.grade(classroom.hand_in("anna", "ps2"))
    assert classroom.table()["anna"]["ps1"] == "15"


def test_a_course_folder_that_was_moved_has_the_same_gradebook(classroom, monkeypatch):
    (classroom.folder / "here").mkdir()
    classroom.hand_in("../here/submitted/anna")
    classroom.grade("here/submitted/anna/ps1/ps1.ipynb", csv="here/grades.csv")
    (classroom.folder / "here").rename(classroom.folder / "there")
    _, out, _ = classroom.grade("there/submitted/anna/ps1/ps1.ipynb",
                                csv="there/grades.csv")
    assert "1 of them graded before" in out
    assert list(classroom.table("there/grades.csv")) == ["anna"]


def test_pages_alone_are_of_all_that_was_graded_too(classroom):
    classroom.grade(classroom.hand_in("anna"), "--html", "pages", csv=None)
    classroom.grade(classroom.hand_in("ben", "ps2"), "--html", "pages", csv=None)
    assert "anna" in classroom.pages()["index.html"]
    assert {"anna.html", "ben.html"} < set(classroom.pages())


def test_a_run_that_breaks_off_keeps_what_was_graded_of_all_sets(classroom, monkeypatch):
    paths = [classroom.hand_in(f"s{i}", name) for i in range(4) for name in ("ps1", "ps2")]
    right, done = grade_module.grade_one, []

    def broken(path, worker, known):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(path)
        return right(path, worker, known)
    with monkeypatch.context() as patch:
        patch.setattr(grade_module, "grade_one", broken)
        assert classroom.grade(*paths, "--jobs", "1")[0] == 130
    _, out, _ = classroom.grade(*paths)
    assert "8 notebooks, 5 of them graded before" in out
    assert {row["total"] for row in classroom.table().values()} == {"31"}


# whose it is

@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_has_a_row_of_its_own_and_is_no_formula(classroom, name):
    classroom.grade(classroom.hand_in(name, sgd="Uphill."), classroom.hand_in(name, "ps2"),
                    classroom.hand_in("zoe"))
    rows = classroom.rows("grades.csv")
    assert [row["ps1"] for row in rows] == (["15", "13"] if rows[0]["student"] == "zoe"
                                            else ["13", "15"])
    [cell] = [row["student"] for row in rows if row["student"] != "zoe"]
    plain = name.replace("\n", " ").replace("\t", " ")
    formula = name.strip().startswith(("=", "+", "-", "@", "\uff1d"))
    assert cell == "'" * formula + plain
    assert (classroom.folder / "grades.csv").read_bytes().count(b"\n") == 3


def test_two_students_of_one_name_in_two_folders_are_two(classroom):
    paths = [classroom.hand_in("group1/anna"), classroom.hand_in("group2/anna", sgd="Up."),
             classroom.hand_in("group2/ben")]
    classroom.grade(*paths, "--html", "pages")
    table = classroom.table()
    assert {name: row["ps1"] for name, row in table.items()} == {
        "group1/anna": "15", "group2/anna": "13", "ben": "15"}
    pages = classroom.pages()
    assert len(pages) == 4
    [page] = [text for text in pages.values() if "Up." in text and "<table" in text
              and "group2/anna" in text and "group1/anna" not in text]
    assert "ben" not in page


def test_one_student_named_by_two_spellings_of_the_path_is_one(classroom):
    classroom.hand_in("anna")
    classroom.hand_in("anna", "ps2")
    classroom.grade("submitted/anna/ps1/ps1.ipynb",
                    "submitted/../submitted/./anna/ps2/ps2.ipynb")
    assert list(classroom.table()) == ["anna"]


def test_of_two_notebooks_for_a_set_the_one_with_its_name_counts_and_a_note_says_so(
        classroom):
    classroom.grade(classroom.hand_in("anna", name="ps1-Copy1", sgd="Uphill."),
                    classroom.hand_in("anna"))
    row = classroom.table()["anna"]
    assert row["ps1"] == "15"
    assert "ps1-Copy1.ipynb" in row["note"] and "ps1" in row["note"]


def test_a_notebook_that_was_renamed_does_not_count_beside_its_new_name(classroom):
    path = classroom.hand_in("anna", name="ps1-final", sgd="Uphill.")
    classroom.grade(path)
    classroom.hand_in("anna")
    (classroom.folder / "submitted/anna/ps1/ps1-final.ipynb").unlink()
    classroom.grade("submitted/anna/ps1/ps1.ipynb")
    row = classroom.table()["anna"]
    assert (row["ps1"], row["note"]) == ("15", "")


def test_grades_stay_when_the_notebooks_were_archived(classroom):
    path = classroom.hand_in("anna")
    classroom.grade(path)
    (classroom.folder / "submitted/anna/ps1/ps1.ipynb").unlink()
    classroom.grade(classroom.hand_in("ben", "ps2"))
    assert classroom.table()["anna"]["ps1"] == "15"


def test_a_notebook_of_no_set_is_named_and_is_no_student(classroom):
    lost = classroom.write("submitted/anna/homework.ipynb", "{}")
    _, out, _ = classroom.grade(classroom.hand_in("ben"), lost, "--html", "pages")
    assert list(classroom.table()) == ["ben"]
    assert "homework.ipynb" in out and "NOT GRADED" in out
    assert "homework.ipynb" in classroom.pages()["index.html"]


# what cannot be graded

def cell(**changes):
    mark = {"grade_id": "sgd", "solution": True} | changes.pop("mark", {})
    return {"cell_type": "code", "source": "right", "metadata": {"nbgrader": mark}} | changes


def of_cells(*cells):
    return json.dumps({"cells": cells})


DEEP = json.loads("[" * 900 + "]" * 900)
BAD = {
    "empty": "", "blank": " \n", "words": "hello", "html": "<html>", "zip": "PK\3\4",
    "list": "[]", "number": "7", "null": "null", "text": '"cells"', "true": "true",
    "deep list": "[" * 10**5, "deep dict": '{"a":' * 10**5, "cut": '{"cells": [',
    "two": "{}{}", "comma": '{"cells": [],}', "huge int": "9" * 10**5,
    "no cells": "{}", "cells null": '{"cells": null}', "cells text": '{"cells": "x"}',
    "cells dict": '{"cells": {"0": {}}}', "version 3": '{"worksheets": [{"cells": []}]}',
    "cells empty": of_cells(), "stripped": of_cells({}), "cell null": of_cells(None),
    "cell list": of_cells([[]]), "no mark": of_cells(cell(metadata={})),
    "mark null": of_cells(cell(metadata={"nbgrader": None})),
    "mark text": of_cells(cell(metadata={"nbgrader": "sgd"})),
    "metadata list": of_cells(cell(metadata=[])),
    "id null": of_cells(cell(mark={"grade_id": None})),
    "id deep": of_cells(cell(mark={"grade_id": DEEP})),
    "id dict": of_cells(cell(mark={"grade_id": {}})),
    "solution 1": of_cells(cell(mark={"solution": 1})),
    "source null": of_cells(cell(source=None)), "source dict": of_cells(cell(source={})),
    "source number": of_cells(cell(source=7)),
    "kind raw": of_cells(cell(cell_type="raw")), "kind deep": of_cells(cell(cell_type=DEEP)),
    "words only": of_cells(cell(cell_type="markdown")),
    "null cells": '{"cells": [null, null]}', "nul": "\0" * 99}
# these can be read, and count for what can be read of them
ODD = {
    "kinds": of_cells(cell(), cell(cell_type=DEEP), cell(cell_type=7), cell(cell_type=None)),
    "checksums": of_cells(cell(mark={"checksum": DEEP}), cell(mark={"checksum": 7})),
    "points": of_cells(cell(), *(cell(mark={
        "solution": False, "grade": True, "grade_id": f"g{i}", "checksum": "x",
        "points": points}) for i, points in enumerate(
            [None, DEEP, {}, "x", 10**400, -1, True, float("nan"), float("inf")]))),
    "marks": of_cells(cell(), *(cell(mark={"solution": odd, "grade": odd, "locked": odd,
                                           "checksum": "x", "grade_id": "g"})
                                for odd in (None, [], {}, "", "x", 2, DEEP))),
    "surrogates": of_cells(cell(), cell(mark={"grade_id": "\ud800"}, source="\ud800"),
                           cell(mark={"grade_id": "words"}, cell_type="markdown",
                                source="why \ud800 \0 \x1b[2J")),
    "many": of_cells(*[cell(source="")] * 20_000, cell()),
    "long names": of_cells(cell(), cell(mark={"grade_id": "x" * 10**6})),
    "long words": of_cells(cell(), cell(mark={"grade_id": "words"}, cell_type="markdown",
                                        source="because " * 10**5)),
    "twice": '{"cells": [], "cells": ' + of_cells(cell()).partition(":")[2],
    "nan": of_cells(cell(), cell(mark={"grade_id": "g"}, source=float("nan")))}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_notebook_counts_for_what_can_be_read_of_it(classroom, kind):
    paths = [classroom.hand_in("anna"),
             classroom.write("submitted/ben/ps1/ps1.ipynb", ODD[kind])]
    code, _, err = classroom.grade(*paths, "--words", "words.csv", "--html", "pages")
    again, _, err_again = classroom.grade(*paths, "--words", "words.csv", "--html", "pages")
    assert (code, again) == (0, 0) and "Traceback" not in err + err_again
    assert {name: row["ps1/sgd"] for name, row in classroom.table().items()} == {
        "anna": "2", "ben": "2"}


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_notebook_costs_itself_alone(classroom, kind):
    paths = [classroom.hand_in("anna"), classroom.hand_in("ben", "ps2"),
             classroom.write("submitted/ben/ps1/ps1.ipynb", BAD[kind]),
             classroom.hand_in("zoe")]
    code, out, _ = classroom.grade(*paths, "--html", "pages")
    assert code == 0 and out.count("NOT GRADED") == 1
    table = classroom.table()
    assert [(row["ps1"], row["ps2"]) for row in table.values()] == [
        ("15", ""), ("0", "16"), ("15", "")]
    assert table["ben"]["note"].startswith("ps1: not graded: ")
    assert table["anna"]["note"] == table["zoe"]["note"] == ""
    assert "Not graded" in classroom.pages()["ben.html"]


def test_a_repaired_notebook_is_graded_and_its_note_is_gone(classroom):
    classroom.grade(classroom.write("submitted/ben/ps1/ps1.ipynb", "hello"))
    classroom.grade(classroom.hand_in("ben"))
    assert (classroom.table()["ben"]["ps1"], classroom.table()["ben"]["note"]) == ("15", "")


@pytest.mark.parametrize("pattern", ["submitted/*/ps1/*.ipynb", "submitted/?/ps1.ipynb",
                                     "submitted/[ab]/ps1/ps1.ipynb", "missing/ps1.ipynb"])
def test_a_glob_that_matches_nothing_is_one_line_and_nobodys_grade(classroom, pattern):
    good = classroom.hand_in("anna/x")  # submitted/anna/x: no pattern fits it
    line = classroom.refused(good, pattern, "--html", "pages")
    assert pattern in line and "no such notebook" in line
    assert sorted(path.name for path in classroom.folder.iterdir()) == ["submitted"]


def test_a_learner_whose_name_is_a_star_is_graded(classroom):
    classroom.grade(classroom.hand_in("*"))
    assert classroom.table()["*"]["ps1"] == "15"
