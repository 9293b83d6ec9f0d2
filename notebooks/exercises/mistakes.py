"""What to teach again: which exercises a class did not solve, and why.

python mistakes.py ps1      reads autograded/*/ps1/ps1.ipynb

reasons   why the checks of one notebook gave less than all points
report    the lines for a class: what most need first, what is not written last
"""

import re
import sys
from pathlib import Path

import nbformat
from nbgrader.utils import determine_grade, is_grade, is_solution

BLANK = "not written yet"
LISTS = (
    r"^(got away|accused, and right): (.+)"  # each of these counts by itself
)


def reasons(nb):
    """Return the pairs (exercise, reason) of an autograded notebook, without repeats."""
    found, answers = [], []
    for cell in nb.cells:
        if cell.cell_type == "code" and is_solution(cell):
            answers.append(cell)
        elif cell.cell_type == "code" and is_grade(cell):
            points, most = determine_grade(cell)
            name = cell.metadata.nbgrader.grade_id.removeprefix("check_")
            if points < most:
                found += [(name, why) for why in _why(cell, answers)]
            answers = []
    return list(dict.fromkeys(found))


def report(notebooks):
    """Return lines "3 of 7  allreduce  what it looks like", most first, blank last."""
    counts = {}  # numbers differ from learner to learner: the first one's are shown
    for nb in notebooks:
        for name, why in reasons(nb):
            counts.setdefault((name, re.sub(r"\d+", "#", why)), []).append(
                why
            )
    rows = sorted(
        counts.items(), key=lambda row: (row[1][0] == BLANK, -len(row[1]))
    )
    wide = max((len(name) for name, _ in counts), default=0)
    return [
        f"{len(whys)} of {len(notebooks)}  {name:{wide}}  {whys[0]}"
        for (name, _), whys in rows
    ]


def _why(check, answers):
    broken = [text for cell in answers for text in _errors(cell)]
    if broken:  # the check only finds that a name is not defined
        return broken[:1]
    said = "\n".join(
        output.get("text", output.get("evalue", ""))
        for output in check.outputs
    )
    if BLANK in said:
        return [BLANK]
    hints = re.findall(r"^perhaps (.+)", said, re.M)
    lists = [re.match(LISTS, hint) for hint in hints]
    if hints:
        return [
            f"{one[1]}: {part}"
            for one in filter(None, lists)
            for part in one[2].split("; ")
        ] or hints
    return (
        ["wrong, in no way that has a hint"]
        if "not right yet" in said
        else (_errors(check) or ["some points"])
    )


def _errors(cell):
    return [
        text
        if output.ename == "AssertionError" and text
        else f"{output.ename}: {text}"
        for output in cell.outputs
        if output.output_type == "error"
        for text in [output.evalue.partition("\n")[0].partition(" (")[0]]
    ]


if __name__ == "__main__":
    paths = sorted(
        Path("autograded").glob(f"*/{sys.argv[1]}/{sys.argv[1]}.ipynb")
    )
    print("\n".join(report([nbformat.read(path, 4) for path in paths])))
