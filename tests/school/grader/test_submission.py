"""Reading what was handed in: right, odd and hostile files."""

import json
import os
import re
from pathlib import Path

import pytest

from manual_dp.school.exercise import SETS
from manual_dp.school.grader import submission
from manual_dp.school.grader.submission import LARGEST, identify


def cell(grade_id, source, kind="code", **meta):
    return {"cell_type": kind, "source": source, "metadata": {
        "nbgrader": {"grade_id": grade_id, "solution": True, **meta}}}


GOOD = cell("sgd", "x = 1")


def file(tmp_path, content):
    """Write a file that is handed in: bytes, a text, or what is put into JSON."""
    path = tmp_path / "ps1.ipynb"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(path):
    """Return the code and the words of a notebook."""
    found = submission.read(path)
    assert found["edited"] == []
    return found["code"], found["words"]


def notebook(tmp_path, *cells):
    return read(file(tmp_path, {"cells": list(cells), "nbformat": 4}))


# identify

@pytest.mark.parametrize("path, student, problem_set", [
    ("submitted/anna/ps1/ps1.ipynb", "anna", "ps1"),
    ("submitted/anna/ps2/answers.ipynb", "anna", "ps2"),
    ("submitted/anna/ps1/ps2.ipynb", "anna", "ps1"),
    ("submitted/anna/ps1/old/x.ipynb", "anna", "ps1"),
    ("submitted/ps3/ps1/x.ipynb", "ps3", "ps1"),
    ("submitted/ps1/anna/ps4/x.ipynb", "anna", "ps4"),
    ("anna/ps1/ps1.ipynb", "anna", "ps1"),
    ("anna/ps1.ipynb", "anna", "ps1"),
    ("anna/ps6-copy.ipynb", "anna", "ps6"),
    ("anna/my ps5 (2).ipynb", "anna", "ps5"),
    ("anna/./ps1//ps1.ipynb", "anna", "ps1"),
    ("ben/../anna/ps1/ps1.ipynb", "anna", "ps1"),
    ("anna/ps1/ps2/../x.ipynb", "anna", "ps1"),
    ("\u00c5sa \U0001f600/ps1/x.ipynb", "\u00c5sa \U0001f600", "ps1"),
    ("=cmd()/ps1/x.ipynb", "=cmd()", "ps1"),
    ("a\nb/ps1/x.ipynb", "a\nb", "ps1"),
    ("a\udcff/ps1/x.ipynb", "a\udcff", "ps1")])
def test_where_a_notebook_lies_says_whose_it_is(
        monkeypatch, tmp_path, path, student, problem_set):
    monkeypatch.chdir(tmp_path)
    for way in (path, tmp_path / path):
        folder, name = identify(way)
        assert (folder.name, name) == (student, problem_set)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert identify(f"../{path}") == identify(tmp_path / path)


def test_a_file_without_a_folder_belongs_to_the_folder_of_now(monkeypatch, tmp_path):
    for folder, student in [("anna", "anna"), ("ben/ps2", "ben")]:
        (tmp_path / folder).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        home, name = identify("ps2.ipynb")
        assert (home.name, name) == (student, "ps2")


@pytest.mark.parametrize("path", ["anna/x.ipynb", "anna/PS1/x.ipynb", "x.ipynb", "",
                                  "anna/ps99/x.ipynb", "anna/ps1x/x.ipynb", "../x.ipynb",
                                  "a\0b/x.ipynb"])
def test_a_notebook_of_no_problem_set_is_refused(monkeypatch, tmp_path, path):
    (tmp_path / "class").mkdir()
    monkeypatch.chdir(tmp_path / "class")
    with pytest.raises(ValueError, match="no problem set in its name: hand in as "
                                         "student/ps1/ps1.ipynb"):
        identify(path)


def test_every_set_is_known():
    assert [identify(f"/anna/{name}/x.ipynb") for name in SETS] == [
        (Path("/anna"), name) for name in SETS]


# read

def test_answers_come_by_their_grade_ids(tmp_path):
    assert notebook(
        tmp_path, GOOD, cell("why", "because", "markdown"),
        cell("allreduce", ["def allreduce(data):\n", "    pass"]),
        {"cell_type": "markdown", "source": "# Head", "metadata": {}}) == (
            {"sgd": "x = 1", "allreduce": "def allreduce(data):\n    pass"},
            {"why": "because"})


def test_cells_that_are_no_answers_are_left_out(tmp_path):
    assert notebook(tmp_path, GOOD, cell("check", "y", solution=False),
                    cell("odd", "y", solution=1), cell("odd", "y", solution="true"),
                    cell(None, "y"), cell(7, "y"), cell(["a"], "y")) == (
                        {"sgd": "x = 1"}, {})


def test_cells_with_one_grade_id_are_joined_in_their_order(tmp_path):
    assert notebook(tmp_path, GOOD, cell("w", "1", "markdown"), cell("sgd", "y = 2"),
                    cell("other", "z"), cell("w", "2", "markdown"), cell("sgd", "y")) == (
                        {"sgd": "x = 1\ny = 2\ny", "other": "z"}, {"w": "1\n2"})


@pytest.mark.parametrize("kind", ["markdown", "raw", None, 7, {}])
def test_the_grade_id_of_an_answer_on_another_cell_is_no_code(tmp_path, kind):
    assert notebook(tmp_path, cell("sgd", "words", kind), GOOD, cell("b", "y")) == (
        {"sgd": "x = 1", "b": "y"}, {"sgd": "words"})


@pytest.mark.parametrize("odd", [
    None, 0, "cell", [], [[]], {}, {"cell_type": "code"}, {"metadata": {}},
    {"cell_type": "code", "source": "x"},
    {"cell_type": "code", "source": "x", "metadata": None},
    {"cell_type": "code", "source": "x", "metadata": []},
    {"cell_type": "code", "source": "x", "metadata": {"nbgrader": None}},
    {"cell_type": "code", "source": "x", "metadata": {"nbgrader": "sgd"}},
    {"cell_type": "code", "source": "x", "metadata": {"nbgrader": {}}},
    cell("odd", None), cell("odd", 5), cell("odd", {"a": 1}), cell("odd", True)])
def test_a_cell_of_another_form_is_passed_over(tmp_path, odd):
    assert notebook(tmp_path, odd, GOOD) == ({"sgd": "x = 1"}, {})


def test_what_is_no_text_in_a_source_is_left_out(tmp_path):
    assert notebook(tmp_path, cell("a", ["x", 1, None, ["y"], {"z": 1}, " = 1"]),
                    cell("b", [])) == ({"a": "x = 1", "b": ""}, {})


def test_strange_characters_arrive_as_they_are(tmp_path):
    strange = "x = '\ud800 \0 \u202e <b> \U0001f600'"
    assert notebook(tmp_path, cell("\ud800", strange)) == ({"\ud800": strange}, {})


@pytest.mark.parametrize("start", ["utf-8", "utf-8-sig", "utf-16"])
def test_other_unicode_files_are_read(tmp_path, start):
    data = json.dumps({"cells": [cell("sgd", "\u00e5")]}, ensure_ascii=False)
    assert read(file(tmp_path, data.encode(start))) == ({"sgd": "\u00e5"}, {})


@pytest.mark.parametrize("content", [
    b"", b" \n", b"{", b"<html>", b"PK\x03\x04" + bytes(99), b"\xff\xfe\xfa", b"\xff" * 9,
    b'{"cells": [\xe9\xff]}', b"\0" * 99, b"[" * 10**6, b'{"a":' * 10**5,
    b'{"cells": [' + b"9" * 5000 + b"]}"],
    ids=["empty", "blank", "cut", "html", "zip", "utf-16", "bytes", "latin", "nul",
         "deep list", "deep dict", "huge int"])
def test_what_is_not_json_is_no_notebook(tmp_path, content):
    with pytest.raises(ValueError, match="^this is no notebook: not JSON$"):
        read(file(tmp_path, content))


@pytest.mark.parametrize("content", [
    None, 7, "text", [], [GOOD], {}, {"cells": None}, {"cells": {}}, {"cells": "sgd"},
    {"worksheets": [{"cells": [GOOD]}]}])
def test_json_of_another_kind_is_no_notebook(tmp_path, content):
    with pytest.raises(ValueError, match="^this is no notebook: it has no cells$"):
        read(file(tmp_path, json.dumps(content)))


@pytest.mark.parametrize("cells", [
    [], [{"cell_type": "code", "source": "x", "metadata": {}}],
    [cell("why", "only words", "markdown")], [cell("check", "x", solution=False)]])
def test_a_notebook_without_answers_to_grade_is_refused(tmp_path, cells):
    with pytest.raises(ValueError, match="no cell carries a grade id: not a notebook "
                                         "of this course, or its metadata were stripped"):
        notebook(tmp_path, *cells)


def test_a_notebook_as_large_as_allowed_is_read_and_a_byte_more_is_not(
        monkeypatch, tmp_path):
    path = file(tmp_path, {"cells": [GOOD]})
    monkeypatch.setattr(submission, "LARGEST", path.stat().st_size)
    assert read(path) == ({"sgd": "x = 1"}, {})
    monkeypatch.setattr(submission, "LARGEST", path.stat().st_size - 1)
    with pytest.raises(ValueError, match="larger than 0 MiB"):
        read(path)


def test_a_notebook_of_21_mib_is_refused(tmp_path):
    path = file(tmp_path, {"cells": [GOOD]})
    os.truncate(path, 21 * 2**20)
    assert LARGEST < 21 * 2**20
    with pytest.raises(ValueError, match="^larger than 20 MiB$"):
        read(path)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    (tmp_path / "folder.ipynb").mkdir()
    os.mkfifo(tmp_path / "pipe.ipynb")  # opened for reading, it would wait for ever
    (tmp_path / "link.ipynb").symlink_to("pipe.ipynb")
    paths = [*tmp_path.iterdir(), Path("/dev/zero")]
    for path in paths:
        with pytest.raises(ValueError, match="^this is no file$"):
            read(path)
    assert len(paths) == 4


def test_a_link_to_a_notebook_is_read(tmp_path):
    (tmp_path / "link.ipynb").symlink_to(file(tmp_path, {"cells": [GOOD]}))
    assert read(tmp_path / "link.ipynb") == ({"sgd": "x = 1"}, {})


def test_what_cannot_be_opened_says_why(tmp_path):
    (tmp_path / "nowhere.ipynb").symlink_to("gone")
    (tmp_path / "round.ipynb").symlink_to("round.ipynb")
    for name, reason in [("missing.ipynb", "No such file or directory"),
                         ("nowhere.ipynb", "No such file or directory"),
                         ("round.ipynb", "Too many levels of symbolic links"),
                         ("no/such.ipynb", "No such file or directory"),
                         ("x" * 300, "File name too long")]:
        with pytest.raises(ValueError, match=f"^cannot be opened: {re.escape(reason)}$"):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["a\0b.ipynb", "\ud800.ipynb"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(ValueError):
        read(name)


def test_no_file_stays_open(tmp_path):
    def opened():
        return len(os.listdir("/proc/self/fd"))
    os.mkfifo(tmp_path / "pipe")
    good, before = file(tmp_path, {"cells": [GOOD]}), opened()
    for path in [good, tmp_path / "pipe", tmp_path, tmp_path / "missing"]:
        try:
            read(path)
        except ValueError:
            pass
    assert opened() == before
