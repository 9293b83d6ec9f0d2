"""Say that points by hand hold, also after their set was graded anew.

python keep_points.py ps1            those of all students
python keep_points.py ps1 Al Bo      those of these

nbgrader marks such points, for a check or an answer may be another one now: only a
person can say that it is not, in Formgrader one by one, or here.
"""

import sys

from grading import grades_by_hand
from nbgrader.api import Gradebook


def keep(gradebook, name, students):
    """Take the mark off all points by hand in a set; return a line for each student.

    students: their names, none for all.
    """
    lines = []
    for submission in gradebook.assignment_submissions(name):
        if students and submission.student.id not in students:
            continue
        kept = []
        for grade in grades_by_hand(submission):
            if grade.needs_manual_grade:
                grade.needs_manual_grade = False
                asked = grade.name.removeprefix("check_")
                kept.append(f"{asked} {grade.manual_score:g}")
        if kept:
            lines.append(f"kept  {submission.student.id}: {', '.join(kept)}")
    gradebook.db.commit()
    return sorted(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(
            "python keep_points.py ps1: points by hand hold, after grading anew"
        )
    with Gradebook("sqlite:///gradebook.db", "manual_dp") as gradebook:
        lines = keep(gradebook, sys.argv[1], sys.argv[2:])
    print("\n".join(lines or ["no points by hand are marked"]))
    print("Next: nbgrader export")
