"""One gradebook over all sets: what each student has for each of them.

    Gradebook   made of records, of this run and of earlier ones
    Work        what one student has for one set
    write_csv   a row a student, a column a set
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from manual_dp.school.exercise import SETS, exercises, questions
from manual_dp.school.grader import sheet
from manual_dp.school.grader.students import Students
from manual_dp.school.grader.submission import identify


@dataclass
class Text:
    """An answer in words; `points` is None until a person has given them.

    changed: the points were given to another version of it.
    """

    most: float
    text: str = ""
    points: float | None = None
    comment: str = ""
    changed: bool = False

    @property
    def waits(self):
        """Return whether there is something to read."""
        return bool(self.text) and (self.points is None or self.changed)


@dataclass
class Work:
    """What one student has for one set: the record of the notebook that counts."""

    record: dict
    others: list = field(default_factory=list)
    texts: dict = field(default_factory=dict)

    @property
    def points(self):
        """Return the points for code and words, as far as they are given."""
        return number(self.record["score"]
                      + sum(text.points or 0 for text in self.texts.values()))

    @property
    def to_read(self):
        """Return how many texts wait for a person."""
        return sum(text.waits for text in self.texts.values())


class Gradebook:
    """What every student has for every set.

    students: who there is. works: {folder: {set: Work}}. sets: those that somebody
    handed in. lost: records of notebooks that belong to no set.
    """

    def __init__(self, records):
        found, self.lost = {}, []
        for record in records:
            try:
                folder, name = identify(record["file"])
            except ValueError:
                folder, name = None, None
            there = os.path.lexists(record["file"])
            if there or name and not record["note"]:  # or it was moved, or thrown away
                found.setdefault((folder, name), []).append(record)
        self.lost = found.pop((None, None), [])
        self.students = Students(folder for folder, _ in found)
        self.sets = [name for name in SETS if any(name == of for _, of in found)]
        self.works = {folder: {} for folder in self.students.folders}
        for name in self.sets:
            for folder in self.students.folders:
                if (folder, name) in found:
                    self.works[folder][name] = _choose(name, found[folder, name])

    def total(self, folder):
        """Return a student's points over all sets."""
        return number(sum(work.points for work in self.works[folder].values()))

    def notes(self, folder):
        """Yield, in words, what is odd with a student's work."""
        for name, work in self.works[folder].items():
            if work.record["note"]:
                yield f"{name}: not graded: {work.record['note']}"
            if work.others:
                yield (f"{name}: {Path(work.record['file']).name} counts, "
                       f"not {', '.join(work.others)}")
            for question, text in work.texts.items():
                if text.changed:
                    yield f"{name}/{question}: the text has changed since it got points"


def _choose(name, records):
    """Return the Work of one student for one set, who may have left several."""
    there = [record for record in records if os.path.lexists(record["file"])]
    first, *others = sorted(there or records, key=lambda record: (
        Path(record["file"]).name != f"{name}.ipynb", record["file"]))
    texts = {question: Text(most, first["words"].get(question, ""))
             for question, most in questions(name).items()}
    return Work(first, [Path(record["file"]).name for record in others], texts)


def maximum(problem_set):
    """Return the points of a set, for code and for words."""
    code = sum(exercise.points for exercise in exercises(problem_set).values())
    return code + sum(questions(problem_set).values())


def number(points):
    """Return points as a whole number if they are one."""
    return int(points) if points == int(points) else round(points, 6)


def write_csv(path, book):
    """Write a row for each student, a column for each set, then those of exercises."""
    parts = [part for name in book.sets for part in [
        *exercises(name), *(f"{name}/{question}" for question in questions(name))]]
    head = ["student", *book.sets, "total", "max", "texts_to_read", "note", *parts]
    rows = []
    for folder, works in book.works.items():
        row = {"student": book.students.names[folder], "total": book.total(folder),
               "max": number(sum(map(maximum, book.sets))),
               "texts_to_read": sum(work.to_read for work in works.values()),
               "note": sheet.plain("; ".join(book.notes(folder)))}
        for name, work in works.items():
            row[name] = work.points
            row |= {part: number(points) for part, (points, _) in
                    work.record["exercises"].items()}
            row |= {f"{name}/{question}": number(text.points or 0) for question, text
                    in work.texts.items() if text.points is not None or not text.text}
        rows.append(row)
    sheet.write(path, head, rows)
