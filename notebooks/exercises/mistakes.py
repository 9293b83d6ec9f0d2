"""Print which exercises a class did not solve, and why: what to teach again.

python mistakes.py ps1      read autograded/*/ps1/ps1.ipynb

reasons   why the checks of one notebook gave less than all points
report    the lines for a class: the most frequent first, what nobody wrote last
ungraded  the lines for checks and notebooks that have no points yet: what to do again
same      the lines for learners whose code is the same, to the letter
"""

import re
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
from grading import (
    by_reason,
    errors,
    no_copy,
    points_by_hand,
    without_points,
)
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.utils import determine_grade, is_grade, is_solution

from course.school.checks import ENDLESS

BLANK = "not written yet"
# in a cell that nobody has written yet
STUB = r"raise NotImplementedError\(\)"
# a hint of problem set 7 that lists several mistakes: each counts by itself
LISTS = r"^(got away|accused, and right): (.+)"


def reasons(nb):
    """Return the pairs (exercise, reason) of an autograded notebook, without repeats."""
    found, answers, without = [], [], without_points(nb)
    for cell in nb.cells:
        if cell.cell_type == "code" and is_solution(cell):
            answers.append(cell)
        elif cell.cell_type == "code" and is_grade(cell):
            points, most = determine_grade(cell)
            name = cell.metadata.nbgrader.grade_id.removeprefix("check_")
            if (
                points < most
                and cell.metadata.nbgrader.grade_id not in without
            ):
                found += [(name, why) for why in _why(cell, answers)]
            answers = []
    return list(dict.fromkeys(found))


def report(notebooks):
    """Return lines "3 of 7  allreduce  what it looks like", most first, blank last."""
    # one mistake has other numbers with other learners: count without, show the first's
    groups = {}
    for nb in notebooks:
        for name, why in reasons(nb):
            key = name, re.sub(r"\d+", "#", why)
            groups.setdefault(key, []).append(why)
    rows = sorted(
        groups.items(), key=lambda row: (row[1][0] == BLANK, -len(row[1]))
    )
    width = max((len(name) for name, _ in groups), default=0)
    return [
        f"{len(whys)} of {len(notebooks)}  {name:{width}}  {whys[0]}"
        for (name, _), whys in rows
    ]


def ungraded(handed_in, graded, by_hand):
    """Return lines for what has no points, by {name: file}, {name: notebook}.

    by_hand: {name: {question: points}}, which somebody has given meanwhile.
    """
    lines = []
    for name, file in handed_in.items():
        if name in graded:
            known = by_hand.get(name, {})
            whys = by_reason(
                {
                    asked: why
                    for asked, why in without_points(graded[name]).items()
                    if asked.removeprefix("check_") not in known
                }
            )
        else:
            whys = [no_copy(file)]
        lines += [f"no points yet  {name}: {why}" for why in whys]
    return lines


def same(graded):
    """Return lines "the same code  Al, Bo", by {name: notebook}; blank answers aside.

    Words do not count: whoever takes the code of another may write them anew.
    """
    names = {}
    for name, nb in graded.items():
        texts = tuple(
            cell.source
            for cell in nb.cells
            if cell.cell_type == "code"
            and is_solution(cell)
            and not re.search(STUB, cell.source)
        )
        names.setdefault(texts, []).append(name)
    return [
        f"the same code  {', '.join(those)}: all that they wrote"
        for texts, those in names.items()
        if texts and len(those) > 1
    ]


def _why(check, answers):
    """Return the reasons why a check gave less than all points."""
    # an error in the answer comes first: the check only finds a name undefined
    for cell in answers:
        if found := errors(cell):
            return found[:1]
    text = "\n".join(
        output.get("text", output.get("evalue", ""))
        for output in check.outputs
    )
    if BLANK in text:
        return [BLANK]
    hints = re.findall(r"^perhaps (.+)", text, re.M)
    listed = []
    for hint in hints:
        if found := re.match(LISTS, hint):
            parts = found[2].split("; ")
            listed += [f"{found[1]}: {part}" for part in parts]
    if hints:
        return listed or hints
    if which := re.search(r"^\d+ of \d+ points: (.+)", text, re.M):
        return [which[1]]  # of a problem in two parts
    if "not right yet" in text:
        return ["wrong, in no way that has a hint"]
    if ENDLESS in text:
        return [f"it {ENDLESS}"]
    return errors(check) or ["some points"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "python mistakes.py ps1: what to teach again, after autograde"
        )
    handed_in, graded = (
        {
            path.name: path / sys.argv[1] / f"{sys.argv[1]}.ipynb"
            for path in sorted(Path(folder).glob("*"))
            if (path / sys.argv[1]).is_dir()
        }
        for folder in ("submitted", "autograded")
    )
    notebooks = {
        name: nbformat.read(path, 4)
        for name, path in graded.items()
        if path.exists()
    }
    by_hand = {}
    for name in notebooks:
        # nbgrader has no points of a student whose folder somebody has renamed
        with (
            Gradebook("sqlite:///gradebook.db", "manual_dp") as gradebook,
            suppress(MissingEntry),
        ):
            by_hand[name] = points_by_hand(gradebook, sys.argv[1], name)
    lines = report([*notebooks.values()])
    lines += ungraded(handed_in, notebooks, by_hand) + same(notebooks)
    all_right = f"{len(notebooks)} notebooks; every check gave all its points"
    print("\n".join(lines or [all_right]))
    print(
        "Next: give points for words, and for what has none, in Formgrader (jupyter "
        f"lab, menu Nbgrader); then nbgrader generate_feedback {sys.argv[1]} --force"
    )
