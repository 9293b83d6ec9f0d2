"""The command line of `grade`: what it prints, writes, refuses, and how it ends."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manual_dp.__main__ import main
from manual_dp.school.grader import grade as grade_module
from manual_dp.school.grader import jail, landlock
from manual_dp.school.grader.journal import Journal

ROOT = Path(__file__).parents[3]
BAD = {"note": "this is no notebook: not JSON"}


def record(student="anna", **changes):
    return {"student": student, "problem_set": "ps1", "score": 2, "max_score": 5,
            "exercises": {"ps1/sgd": [2, ""], "ps1/allreduce": [0, "Not yet."]},
            "words": {}, "code": {}, "edited": [], "note": "",
            "file": f"{student}/ps1.ipynb", **changes}


@pytest.fixture
def graded(monkeypatch, tmp_path):
    """Return a function that says what is graded; it returns a list of the calls."""
    monkeypatch.chdir(tmp_path)
    for name in ("x", "a", "b"):
        (tmp_path / name).touch()

    def graded(*records, new=0):
        calls = []

        def grade_all(*args):
            calls.append(args)
            return list(records), new
        monkeypatch.setattr(grade_module, "grade_all", grade_all)
        return calls
    monkeypatch.setattr(landlock, "available", lambda: True)
    monkeypatch.setattr(jail, "available", lambda: True)
    return graded


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """Return the path of a notebook that cannot be read: nothing is run for it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "anna" / "ps1" / "ps1.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("nonsense")
    monkeypatch.setattr(landlock, "available", lambda: True)
    monkeypatch.setattr(jail, "available", lambda: True)
    return "anna/ps1/ps1.ipynb"


def run(capsys, *arguments):
    """Return (exit code, out, err) of the command."""
    try:
        code = main(["grade", *map(str, arguments)])
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


def refuses(capsys, *arguments):
    """Return the last line of what the command says when it refuses."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and "Traceback" not in err
    return err.splitlines()[-1]


# what it prints

def test_a_line_for_each_notebook(capsys, graded):
    graded(record(), record("bartholomew", score=12, exercises={"ps1/sgd": [12, ""]}),
           record("c", score=0, exercises={}, **BAD), new=1)
    assert run(capsys, "x") == (0, """\
student      set  points     to do again
anna         ps1     2 / 19  allreduce
bartholomew  ps1    12 / 19
c            ps1     0 / 19  NOT GRADED: this is no notebook: not JSON
3 notebooks, 2 of them graded before
""", "")


def test_a_notebook_of_nobody_is_named_by_its_file(capsys, graded):
    graded(record("", problem_set="", file="lost.ipynb", max_score=0, score=0,
                  exercises={}, note="no problem set in its name"))
    assert run(capsys, "x")[1].splitlines()[1] == (
        "lost.ipynb  ?       0 / 0   NOT GRADED: no problem set in its name")


@pytest.mark.parametrize("name", [
    "a\nb", "a\rb", "\x1b[2J\x1b[31mred", "a\0b", "\ud800", "a\udcff", "\u202eb", "\x9b2J",
    "a\tb", "\u2028", "x" * 10**5])
def test_a_strange_name_is_one_short_line_that_a_terminal_only_shows(
        capsys, graded, name):
    graded(record(name, note=name), record())
    code, out, err = run(capsys, "x")
    assert (code, err, len(out.splitlines())) == (0, "", 4)
    assert all(line.isprintable() and len(line) < 180 for line in out.splitlines())


def test_a_terminal_that_knows_no_such_letter_gets_a_question_mark(monkeypatch, graded):
    graded(record("\u00c5sa", note="\u5f20"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["grade", "x"]) == 0
    out.seek(0)
    assert "?sa" in out.read()


def test_where_files_cannot_be_hidden_a_note_says_so(capsys, graded, monkeypatch):
    graded(record())
    assert "Note" not in run(capsys, "x")[2]
    monkeypatch.setattr(landlock, "available", lambda: False)
    code, out, err = run(capsys, "x")
    assert code == 0 and "Note" not in out and err == (
        "Note: this system has no Landlock, so the answers can read your files, the "
        "course among them. Grade in a container (--help).\n")


def test_where_processes_can_be_seen_a_note_says_so(capsys, graded, monkeypatch):
    graded(record())
    monkeypatch.setattr(jail, "available", lambda: False)
    code, out, err = run(capsys, "x")
    assert code == 0 and err.startswith("Note: this system has no namespaces, so the ")


def test_help_says_what_it_is_not_and_gives_the_container(capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert "This is not a sandbox" in out and "docker run --rm --network none" in out
    assert all(word in out for word in ("--csv", "--html", "--words", "--jobs",
                                       "NOTEBOOK"))
    assert all(len(line) <= 88 for line in out.splitlines())


# what it hands on

def test_the_journal_lies_beside_the_table(capsys, graded, tmp_path):
    calls = graded(record())
    assert run(capsys, "a", "b", "--csv", tmp_path / "g.csv", "--jobs", "3")[0] == 0
    [(paths, journal, jobs)] = calls
    assert (paths, journal, jobs) == (["a", "b"], tmp_path / "g.csv.journal", 3)


def test_without_a_table_there_is_no_journal_and_few_jobs(capsys, graded):
    calls = graded(record())
    assert run(capsys, "a")[0] == 0
    [(_, journal, jobs)] = calls
    assert journal is None and jobs == min(os.cpu_count(), 4)


def test_table_and_pages_are_written_and_named(capsys, graded, tmp_path):
    graded()
    code, out, _ = run(capsys, "x", "--csv", tmp_path / "g.csv", "--html",
                       tmp_path / "new" / "pages")
    assert code == 0 and out.splitlines()[-2:] == [
        f"wrote {tmp_path}/g.csv", f"wrote {tmp_path}/new/pages/index.html"]
    assert (tmp_path / "g.csv").read_text().startswith('"student"')
    assert (tmp_path / "new" / "pages" / "index.html").is_file()


# what it refuses, before any work

@pytest.mark.parametrize("arguments, message", [
    ([], "the following arguments are required: NOTEBOOK"),
    (["x", "--fly"], "unrecognized arguments: --fly"),
    (["x", "--jobs", "0"], "--jobs: '0' is no whole number from 1 to 10^6"),
    (["x", "--jobs", "many"], "--jobs: 'many' is no whole number"),
    (["x", "--csv"], "--csv: expected one argument"),
    (["x", "--csv", "."], "--csv: '.' is no file in an existing folder"),
    (["x", "--csv", "no/such/g.csv"], "'no/such/g.csv' is no file in an existing folder"),
    (["x", "--words", "."], "--words: '.' is no file in an existing folder"),
    (["x", "--words", "w.csv"], "--words needs --csv: there the points go"),
    (["x", "submitted/*/ps1.ipynb"], "no such notebook: submitted/*/ps1.ipynb"),
    (["x", "--html", "file"], "File exists: 'file'"),
    (["x", "--html", "file/below"], "Not a directory: 'file/below'")])
def test_a_wrong_argument_is_one_line(
        capsys, graded, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    calls = graded()
    line = refuses(capsys, *arguments)
    assert line.startswith("python -m manual_dp") and ": error: " in line
    assert message in line and calls == []
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file", "x"]


def test_a_second_grader_of_the_same_table_is_refused_in_one_line(
        capsys, bad, tmp_path):
    first = Journal(tmp_path / "g.csv.journal")
    line = refuses(capsys, bad, "--csv", "g.csv")
    first.close()
    assert line == ("python -m manual_dp: error: another grader is writing "
                    f"{tmp_path / 'g.csv.journal'}")
    assert not (tmp_path / "g.csv").exists()


def test_an_interrupt_ends_with_130_and_one_line(capsys, monkeypatch, graded):
    def interrupted(*_):
        raise KeyboardInterrupt
    graded()
    monkeypatch.setattr(grade_module, "grade_all", interrupted)
    code, out, err = run(capsys, "x")
    assert (code, out) == (130, "") and err.startswith("\ninterrupted")


# the whole, on files that cannot be graded

def test_bad_files_are_noted_and_the_end_is_0(capsys, bad, tmp_path):
    (tmp_path / "ben" / "ps1" / "x.ipynb").mkdir(parents=True)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "ps1.ipynb").symlink_to("nowhere")
    (tmp_path / "lost.ipynb").write_text("{}")
    code, out, _ = run(capsys, bad, "ben/ps1/x.ipynb", "gone/ps1.ipynb", "lost.ipynb",
                       "--csv", "g.csv", "--html", "pages")
    assert code == 0 and out.splitlines()[1:5] == [
        "anna        ps1     0 / 19  NOT GRADED: this is no notebook: not JSON",
        "ben         ps1     0 / 19  NOT GRADED: this is no file",
        "gone        ps1     0 / 19  NOT GRADED: cannot be opened: No such file or "
        "directory",
        "lost.ipynb  ?       0 / 0   NOT GRADED: no problem set in its name: hand in as "
        "student/ps1/ps1.ipynb"]
    with open("g.csv", newline="") as file:
        assert [(row["student"], row["ps1"]) for row in csv.DictReader(file)] == [
            ("anna", "0"), ("ben", "0"), ("gone", "0")]
    assert len(list((tmp_path / "pages").rglob("*.html"))) == 4


def test_the_same_command_again_grades_only_what_has_changed(capsys, bad, tmp_path):
    (tmp_path / "ben.ipynb").write_text("ps1")
    command = [bad, "ben.ipynb", "--csv", "g.csv"]
    first = run(capsys, *command)[1]
    again = run(capsys, *command)[1]
    assert "2 notebooks, 0 of them graded before" in first
    assert again == first.replace("0 of them", "2 of them")
    (tmp_path / bad).write_text("[]")
    assert "2 notebooks, 1 of them graded before" in run(capsys, *command)[1]
    assert len((tmp_path / "g.csv.journal").read_text().splitlines()) == 3


def test_the_real_command_prints_its_lines_where_it_is_run(bad, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "manual_dp", "grade", bad], cwd=tmp_path, timeout=100,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT),
                                  "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert done.stdout.splitlines()[1:] == [
        b"anna     ps1     0 / 19  NOT GRADED: this is no notebook: not JSON",
        b"1 notebooks, 0 of them graded before"]


def test_a_journal_holds_no_more_than_json(capsys, bad, tmp_path):
    assert run(capsys, bad, "--csv", "g.csv")[0] == 0
    [line] = (tmp_path / "g.csv.journal").read_text().splitlines()
    assert json.loads(line)["note"] == "this is no notebook: not JSON"
