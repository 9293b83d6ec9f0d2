"""A class that hands in, and an instructor who grades it, without running any answer.

An answer cell reads `right`, or is the message that the grader will give for it.

    Classroom   the folder of a course: notebooks go in, `grade` runs the command
    cells_right the answer cells of a set, all right
"""

import csv
import json

from manual_dp.__main__ import main
from manual_dp.school.exercise import exercises
from manual_dp.school.grader import grade as grade_module
from manual_dp.school.grader import landlock

STUB = "YOUR ANSWER HERE"


def cells_right(problem_set):
    return {cell: "right" for exercise in exercises(problem_set).values()
            for cell in exercise.cells}


def judged(worker, exercise, cells, known):
    answer = cells.get(exercise.name.partition("/")[2], "The answer cell is missing.")
    return None if set(answer.split()) == {"right"} else answer


class Idle:
    """A worker that nobody asks."""

    def stop(self):
        pass

    close = stop


class Classroom:
    """A folder in which notebooks are handed in, and the command that grades them."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys

    def hand_in(self, student, problem_set="ps1", words=STUB, name=None, **changes):
        """Write a notebook: right, but for `changes`, {cell: source or list of them}."""
        cells = [("code", grade_id, source) for grade_id, source in
                 (cells_right(problem_set) | changes).items()]
        cells += [("markdown", "words", text) for text in
                  ([words] if isinstance(words, str) else words)]
        return self.write(f"submitted/{student}/{problem_set}/{name or problem_set}.ipynb",
                          json.dumps({"cells": [
            {"cell_type": kind, "source": source, "metadata": {
                "nbgrader": {"grade_id": grade_id, "solution": True}}}
            for kind, grade_id, sources in cells
            for source in ([sources] if isinstance(sources, str) else sources)]}))

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def grade(self, *arguments, csv="grades.csv"):
        """Run the command on `arguments`; return (exit status, out, err)."""
        table = ["--csv", str(self.folder / csv)] if csv else []
        try:
            code = main(["grade", *map(str, arguments), *table])
        except SystemExit as end:
            code = end.code
        return code, *self.capsys.readouterr()

    def refused(self, *arguments, csv="grades.csv"):
        """Return the one line that the command says when it refuses."""
        code, out, err = self.grade(*arguments, csv=csv)
        assert (code, out) == (2, "") and "Traceback" not in err
        return err.splitlines()[-1]

    def table(self, name="grades.csv"):
        """Return the rows of the table, by student."""
        rows = self.rows(name)
        found = {row["student"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    def rows(self, name):
        with open(self.folder / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file, strict=True))

    def fill_in(self, name="words.csv", **columns):
        """Fill in columns, {column: value or function of a row}, of the words' table."""
        rows = self.rows(name)
        for row in rows:
            row.update({column: value(row) if callable(value) else value
                        for column, value in columns.items()})
        with open(self.folder / name, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)

    def pages(self, name="pages"):
        return {str(path.relative_to(self.folder / name)): path.read_text("utf-8")
                for path in sorted((self.folder / name).rglob("*.html"))}


def without_running(monkeypatch):
    """Let the grader judge by the text of an answer alone."""
    monkeypatch.setattr(grade_module, "Worker", Idle)
    monkeypatch.setattr(grade_module, "grade", judged)
    monkeypatch.setattr(landlock, "available", lambda: True)
