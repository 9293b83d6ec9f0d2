"""Quarters of a point go through the grader, from the judge to the table."""

import json

from manual_dp.__main__ import main
from manual_dp.school.grader.grade import grade_one
from tests.support.wrong import ps7 as wrong


def hand_in(folder, exercise, mistake):
    cell = {"cell_type": "code", "source": wrong.ANSWERS[exercise][mistake][1],
            "metadata": {"nbgrader": {"grade_id": exercise, "solution": True}}}
    path = folder / "anna" / "ps7" / "ps7.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cells": [cell]}))
    return str(path)


def test_a_record_has_the_points_that_are_left(worker, tmp_path):
    record = grade_one(hand_in(tmp_path, "cause", "the first step alone"), worker)
    points, message = record["exercises"]["ps7/cause"]
    assert points == record["score"] == 2.75
    assert "11 bugs caught, 0 right programs accused: 2.75 of 3 points" in message
    assert record["max_score"] == 22
    assert json.loads(json.dumps(record)) == record  # as a journal keeps it


def test_the_table_has_them_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = hand_in(tmp_path, "cause", "rank 0 alone")
    assert main(["grade", path, "--csv", "grades.csv", "--html", "pages"]) == 0
    assert "2.5" in capsys.readouterr().out
    assert "2.5" in (tmp_path / "grades.csv").read_text().replace(",", " ").split()
