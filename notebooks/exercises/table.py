"""The table that `nbgrader export` writes: a row for each student and set.

Table    total, or why there is none; what a late hand-in costs
"""

import csv
import json
import math
from pathlib import Path

import nbformat
from grading import by_reason, no_copy, not_judged, without_points
from nbgrader.api import MissingEntry
from nbgrader.plugins import ExportPlugin
from nbgrader.utils import is_grade, parse_utc
from traitlets import Float

COLUMNS = (
    "student_id",
    "lms_user_id",  # Canvas' or Moodle's, of the file name
    "set",
    "checks",  # points for code
    "words",  # points for answers in words
    "days_late",
    "penalty",
    "total",
    "of",  # points that the set has
    "reason",  # why a number is missing, or should be looked at
)
DAY = 24 * 60 * 60
NOT_HANDED_IN = "nothing handed in"
UNREAD = "nobody has read it yet"
GRADED_SINCE = "points by hand, and graded anew since"
OTHER_POINTS = "graded with other points: grade the class anew"


class Table(ExportPlugin):
    """Write the table. What nobody knows yet is empty: it is never 0."""

    percent_a_day = Float(
        0,
        help="percent of a set's points that each day costs that it came late",
    ).tag(config=True)

    def export(self, gradebook):
        """Write the rows of all sets that were graded, or of those asked for."""
        to, without_total = self.to or "grades.csv", {}
        with open(to, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            for assignment in gradebook.assignments:
                if self.assignment and assignment.name not in self.assignment:
                    continue
                for student in self._students(gradebook, assignment.name):
                    row = self.row(gradebook, assignment, student)
                    table.writerow(row)
                    if row["total"] == "" and row["reason"] != NOT_HANDED_IN:
                        found = without_total.setdefault(assignment.name, [])
                        found.append(student)
        self.log.info("Wrote %s", to)
        self.log.info(_next_step(to, without_total))

    def penalty(self, points, days):
        """Return what `days` begun cost of the `points` that stand at the export."""
        return min(points, points * days * self.percent_a_day / 100)

    def _students(self, gradebook, name):
        """Return those that nbgrader knows, and those who handed in this set."""
        names = {student.id for student in gradebook.students}
        names |= {
            path.parent.name for path in Path("submitted").glob(f"*/{name}")
        }
        return sorted(names.intersection(map(str, self.student or names)))

    def row(self, gradebook, assignment, student):
        """Return a student's row of one set, by the names of COLUMNS."""
        name, row = assignment.name, dict.fromkeys(COLUMNS, "")
        row |= {
            "student_id": student,
            "set": name,
            "of": assignment.max_score,
        }
        folder = Path("submitted", student, name)
        if not folder.exists():
            return row | {"reason": NOT_HANDED_IN}
        record = {}
        if (folder / "handed_in.json").exists():
            record = json.loads((folder / "handed_in.json").read_text())
        row["lms_user_id"] = record.get("lms_user_id", "")
        graded = Path("autograded", student, name, f"{name}.ipynb")
        if not graded.exists():
            return row | {"reason": no_copy(folder / graded.name)}
        try:
            submission = gradebook.find_submission(name, student)
        except MissingEntry:
            return row | {"reason": "not graded yet"}
        row["days_late"] = _days_late(
            folder / "timestamp.txt", submission.duedate
        )
        nb = nbformat.read(graded, 4)
        self._fill(
            row, submission, without_points(nb), not_judged(nb), _points(nb)
        )
        if record.get("late") and submission.duedate is None:
            said = row["reason"], "late, but the set has no due date"
            row["reason"] = "; ".join(filter(None, said))
        return row

    def _fill(self, row, submission, why, not_judged, points):
        """Write the points into a row.

        why: of the checks that have no points. not_judged: of the answers that have 0,
        until somebody gives points by hand. points: with which the notebook was graded;
        the gradebook has other ones if the set was changed since.
        """
        grades = [
            grade for book in submission.notebooks for grade in book.grades
        ]
        by_hand = {
            grade.name.removeprefix("check_")
            for grade in grades
            if grade.manual_score is not None
        }
        counts_0 = {
            grade.name.removeprefix("check_")
            for grade in grades
            if grade.max_score == 0
        }
        look_at = {
            name: why_not
            for name, why_not in not_judged.items()
            if name.removeprefix("check_") not in by_hand | counts_0
        }
        for column, kind in (("checks", "code"), ("words", "markdown")):
            asked = [
                grade for grade in grades if grade.cell.cell_type == kind
            ]
            unknown = {}
            for grade in asked:
                if points.get(grade.name) != grade.max_score:
                    unknown[grade.name] = OTHER_POINTS
                elif grade.manual_score is not None:
                    if grade.needs_manual_grade:
                        look_at[grade.name] = GRADED_SINCE
                elif grade.max_score and (
                    grade.name in why or grade.auto_score is None
                ):
                    unknown[grade.name] = why.get(grade.name, UNREAD)
            if not unknown:
                row[column] = round(sum(grade.score for grade in asked), 2)
            look_at |= unknown
        row["reason"] = "; ".join(by_reason(look_at))
        if row["checks"] != "" and row["words"] != "":
            both = row["checks"] + row["words"]
            row["penalty"] = round(self.penalty(both, row["days_late"]), 2)
            row["total"] = round(both - row["penalty"], 2)


def _next_step(to, without_total):
    """Return the last line of an export. without_total: {set: students}."""
    if not without_total:
        return (
            "Next: nbgrader generate_feedback SET --force, then give out feedback/ and "
            f"the totals in {to}"
        )
    name, students = next(iter(without_total.items()))
    return (
        f"Next: python mistakes.py {name}; {len(students)} have no total in {name}, for "
        f"the reasons in {to}"
    )


def _points(nb):
    """Return {grade id: points} of the graded cells of a notebook."""
    return {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in filter(is_grade, nb.cells)
    }


def _days_late(timestamp, due):
    """Return the days, each one begun, from `due` to what the file says; 0 without."""
    if due is None or not timestamp.exists():
        return 0
    late = parse_utc(timestamp.read_text().strip()) - due
    return max(0, math.ceil(late.total_seconds() / DAY))
