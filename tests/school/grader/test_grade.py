"""A class is graded: everybody gets what the answers deserve, whatever they contain."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import manual_dp
from manual_dp.__main__ import main
from manual_dp.school.exercise import exercises, find
from manual_dp.school.grader import grade as page
from manual_dp.school.grader.grade import grade_all
from manual_dp.school.grader.limits import Doubtful, Others
from manual_dp.school.grader.worker import grade
from manual_dp.school.ps1 import judge
from tests.support.answers import ALL, EXERCISES, READY, WRONG, cells_of
from tests.support.wrong.hostile import HOSTILE
from tests.support.wrong.ps1 import WRONG as WRONG_PS1

COURSE = str(Path(manual_dp.__file__).parent)


@pytest.fixture
def private(tmp_path, monkeypatch):
    """Return a folder for temporary files, which names the processes of this test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def hand_in(folder, student, cells, problem_set="ps1"):
    """Write a notebook as a learner hands it in; return its path."""
    path = folder / student / problem_set / f"{problem_set}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cells": [
        {"cell_type": "code", "source": source.splitlines(True), "metadata": {
            "nbgrader": {"grade_id": grade_id, "solution": True}}}
        for grade_id, source in cells.items()]}))
    return str(path)


def still_running(folder):
    """Return the processes that were started to grade with `folder` for their files."""
    return [p.info["pid"] for p in psutil.process_iter(["pid", "cmdline", "status"])
            if any(str(folder) in word for word in p.info["cmdline"] or [])
            and p.info["status"] != psutil.STATUS_ZOMBIE]


# every answer of the course

@pytest.mark.parametrize("name", ALL)
def test_a_solution_is_graded_right(worker, name):
    cells = cells_of(name.partition("/")[0])
    assert grade(worker, find(name), cells) is None


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_answer_is_graded_wrong_with_a_message(worker, name):
    # the first of each exercise; the checks see all of them: test_wrong_answers.py
    problem_set, _, exercise = name.partition("/")
    cells = cells_of(problem_set) | {exercise: next(iter(WRONG[name].values()))}
    message = grade(worker, find(name), cells)
    assert message and len(message.splitlines()[0]) > 20
    assert "returned nothing" not in message  # it came to an end, and numbers decided


def test_a_blank_release_gets_nothing_and_is_told_why(tmp_path):
    paths = []
    for problem_set in READY:
        release = EXERCISES / "release" / problem_set / f"{problem_set}.ipynb"
        paths.append(tmp_path / "ben" / problem_set / "blank.ipynb")
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_bytes(release.read_bytes())
    records, _ = grade_all(paths)
    for problem_set, record in zip(READY, records, strict=True):
        assert (record["student"], record["score"]) == ("ben", 0)
        wanted = exercises(problem_set)
        assert record["max_score"] == sum(e.points for e in wanted.values())
        assert {name: message for name, (_, message) in record["exercises"].items()} == {
            name: "Not written yet: the cell still raises NotImplementedError."
            for name in wanted}


# hostile ones

def test_hostile_submissions_get_what_they_deserve_and_stop_nothing(
        tmp_path, private, monkeypatch):
    monkeypatch.setattr(judge, "EXERCISES", [replace(exercise, seconds=3)
                                           for exercise in judge.EXERCISES
                                           if exercise.name != "ps1/train_batch"])
    paths = {name: hand_in(tmp_path, f"s{i:02d}", cells_of("ps1") | {
        cell: source.replace("COURSE", COURSE)})
        for i, (name, (cell, source, _)) in enumerate(HOSTILE.items())}
    records, new = grade_all(paths.values(), jobs=2)
    assert len(HOSTILE) >= 29 and new == len(HOSTILE)
    passed = {name: {exercise for exercise, (points, _) in record["exercises"].items()
                     if points} for name, record in zip(paths, records)}
    everything = {exercise.name for exercise in judge.EXERCISES}
    assert passed == {name: everything if passes else everything - {f"ps1/{cell}"}
                      for name, (cell, _, passes) in HOSTILE.items()}
    assert [r["note"] for r in records] == [""] * len(records)
    assert still_running(private) == [] and list(private.iterdir()) == []


def test_a_file_that_is_no_notebook_stops_nothing(tmp_path, private):
    right = cells_of("ps1")
    paths = [hand_in(tmp_path, "anna", right)]
    for student, text in [("empty", ""), ("words", "hello"), ("list", "[]"),
                          ("deep", "[" * 100_000), ("stripped", '{"cells": [{}]}')]:
        path = tmp_path / student / "ps1" / "ps1.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        paths.append(str(path))
    for student in ("pipe", "folder", "nobody"):
        path = tmp_path / student / "ps1" / "ps1.ipynb"
        path.parent.mkdir(parents=True)
        {"pipe": os.mkfifo, "folder": os.mkdir, "nobody": str}[student](path)
        paths.append(str(path))
    paths += [str(tmp_path / "unknown" / "homework.ipynb"),
              hand_in(tmp_path, "zoe", right)]
    records, _ = grade_all(paths)
    assert [record["score"] for record in records] == [15, *[0] * 9, 15]
    assert [bool(record["note"]) for record in records] == [False, *[True] * 9, False]


def test_a_batch_in_which_others_were_touched_stops_and_keeps_nothing_doubtful(
        tmp_path, private, monkeypatch, capsys):
    paths, journal = a_class(tmp_path, 3), tmp_path / "grades.csv.journal"
    grade_all(paths[:1], journal)
    calls = []

    def touched(others):
        calls.append(others)
        if len(calls) > 2:
            raise Doubtful("the cores of process 1 changed")
    monkeypatch.setattr(Others, "compare", touched)
    with pytest.raises(SystemExit) as end:
        main(["grade", *paths, "--csv", str(tmp_path / "grades.csv")])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        "error: the cores of process 1 changed")
    assert lines(journal) == 1 and not (tmp_path / "grades.csv").exists()
    assert still_running(private) == [] and list(private.iterdir()) == []


# interrupted ones

def a_class(folder, size):
    mistakes = [(exercise, source) for exercise, wrong in WRONG_PS1.items()
                for source in wrong.values()]
    paths = []
    for i in range(size):
        exercise, source = mistakes[i % len(mistakes)]
        change = {exercise: source} if i % 3 else {}
        paths.append(hand_in(folder, f"s{i:03d}", cells_of("ps1") | change))
    return paths


def command(paths, csv, *more):
    return [sys.executable, "-m", "manual_dp", "grade", *paths, "--csv", str(csv), *more]


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_class_that_was_killed_at_five_random_moments_gets_the_same_grades(
        tmp_path, private):
    paths, table = a_class(tmp_path, 15), tmp_path / "grades.csv"
    journal, draw = tmp_path / "grades.csv.journal", random.Random()
    words, pages = tmp_path / "words.csv", tmp_path / "pages"
    words.write_text("student,problem_set,question,points\ns001,ps1,words,3\n")
    again = command(paths, table, "--words", str(words), "--html", str(pages))
    before = []
    for moment in sorted(draw.sample(range(1, 13), 5)):
        grader = subprocess.Popen(again, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        while lines(journal) < moment and grader.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.random() / 5)
        grader.send_signal(signal.SIGKILL)
        grader.wait()
        assert lines(journal) >= moment
        before.append(lines(journal))
    done = subprocess.run(again, text=True, capture_output=True, check=True)
    assert f"15 notebooks, {before[-1]} of them graded before" in done.stdout
    keys = [json.loads(line)["key"] for line in journal.read_text().splitlines()
            if line.endswith("}")]
    assert len(keys) == len(set(keys)) == 15
    subprocess.run(command(paths, tmp_path / "whole.csv", "--words", str(words)),
                   check=True, capture_output=True)
    assert table.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    rows = list(csv.DictReader(table.read_text().splitlines()))
    right = [sum(int(row[name]) for name in exercises("ps1")) == 15 for row in rows]
    assert right == [i % 3 == 0 for i in range(15)] and rows[1]["ps1/words"] == "3"
    assert len(list(pages.glob("*.html"))) == 16
    # the killed grader's processes end by themselves
    end = time.monotonic() + 50
    while still_running(private) and time.monotonic() < end:
        time.sleep(0.05)
    assert still_running(private) == []


def test_an_interrupt_ends_the_grader_at_once_and_keeps_what_is_done(tmp_path, private):
    slow = cells_of("ps1") | {"sgd": "import time\ntime.sleep(999)"}
    paths = [*a_class(tmp_path, 3), hand_in(tmp_path, "slow", slow),
             hand_in(tmp_path, "slower", slow)]
    journal = tmp_path / "grades.csv.journal"
    grader = subprocess.Popen(
        command(paths, tmp_path / "grades.csv"), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # a shell's background job would ignore the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        end = time.monotonic() + 200
        while lines(journal) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        start = time.monotonic()
        grader.send_signal(signal.SIGINT)
        _, errors = grader.communicate(timeout=60)
    finally:
        grader.kill()
    assert time.monotonic() - start < 25 and grader.returncode == 130
    assert b"Traceback" not in errors and lines(journal) == 3
    assert still_running(private) == [] and list(private.iterdir()) == []


def test_a_notebook_that_has_changed_is_graded_anew(tmp_path, private):
    path = hand_in(tmp_path, "anna", cells_of("ps1") | {"sgd": WRONG_PS1["sgd"]["uphill"]})
    journal = tmp_path / "journal"
    [record], new = grade_all([path], journal)
    again, none = grade_all([path], journal)
    assert (record["score"], new, again, none) == (13, 1, [record], 0)
    Path(path).write_bytes(Path(hand_in(tmp_path, "b", cells_of("ps1"))).read_bytes())
    [record], new = grade_all([path], journal)
    assert (record["score"], new) == (15, 1)


def test_a_notebook_that_changes_while_it_is_graded_is_graded_anew(
        tmp_path, monkeypatch):
    path, journal = hand_in(tmp_path, "anna", cells_of("ps1")), tmp_path / "journal"

    def grade_then_change(path, worker, known, grade_one=page.grade_one):
        record = grade_one(path, worker, known)
        with open(path, "a") as file:
            file.write(" ")
        return record
    with monkeypatch.context() as patch:
        patch.setattr(page, "grade_one", grade_then_change)
        [record], new = grade_all([path], journal)
    assert (record["score"], new) == (15, 1)
    assert grade_all([path], journal)[1] == 1
    assert grade_all([path], journal)[1] == 0


def test_a_mistake_of_the_grader_itself_is_raised_and_leaves_nothing(
        tmp_path, private, monkeypatch):
    def broken(random):
        raise LookupError("a bug of ours")
    monkeypatch.setattr(judge, "EXERCISES", [
        replace(exercise, draw=broken) for exercise in judge.EXERCISES])
    with pytest.raises(LookupError, match="a bug of ours"):
        grade_all(a_class(tmp_path, 3))
    assert still_running(private) == []
