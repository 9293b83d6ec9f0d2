"""notebooks/book/instructors.md and what it promises: names that exist, code that runs."""

import json
import re
from pathlib import Path

import pytest

from course.school import checks
from course.school.draws import rand
from tests.support.lessons import PAGES, minutes

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGE = (NOTEBOOKS / "book" / "instructors.md").read_text(encoding="utf-8")
README = (NOTEBOOKS / "exercises" / "README.md").read_text(encoding="utf-8")


def markdown(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
    ]


LESSONS = {  # title: minutes
    re.match(r"# \d+\. (.+)", markdown(path)[0])[1]: minutes(
        json.loads(path.read_text(encoding="utf-8"))
    )
    for path in NOTEBOOKS.glob("[0-9]*.ipynb")
    if path.stem not in PAGES
}
EXERCISES = {
    number
    for path in NOTEBOOKS.glob("exercises/source/*/*.ipynb")
    for text in markdown(path)
    for number in re.findall(r"^## (\d\.\d+) ", text)
}


def section(title):
    return re.search(rf"^## {title}\n(.+?)(?=^## |\Z)", PAGE, re.M | re.S)[1]


def rows(title):
    return [
        [entry.strip() for entry in line.strip("|").split("|")]
        for line in section(title).splitlines()
        if line.startswith("|")
    ][2:]


@pytest.mark.parametrize("title", ["Fourteen weeks", "Six weeks"])
def test_a_weeks_hours_are_its_lessons_minutes_times_one_and_a_half(title):
    for week, names, _, hours in rows(title):
        if lessons(names):
            total = sum(LESSONS[name] for name in lessons(names))
            said = float(hours.split(" + ")[0])
            assert abs(said - 1.5 * total / 60) <= 0.25, f"week {week}"


def lessons(entry):
    """Return the lessons that a table's entry names, longest names first."""
    named = re.findall(
        "|".join(sorted(map(re.escape, LESSONS), key=len, reverse=True)), entry
    )
    rest = entry
    for name in named:
        rest = rest.replace(name, "", 1)
    assert not re.search(r"\b[A-Z][a-z]", rest), f"no lesson is called so: {rest}"
    return named


def test_plans_name_lessons_and_the_long_one_has_each_or_leaves_it_out():
    assert all(lessons(row[1]) for row in rows("Six weeks"))
    plan = [name for row in rows("Fourteen weeks") for name in lessons(row[1])]
    left = re.search(
        r"^Left out.+?:(.+?)(?=\. There)", section("Fourteen weeks"), re.M | re.S
    )[1]
    left = [name for name in LESSONS if name in " ".join(left.split())]
    assert sorted(plan + left) == sorted(LESSONS)


def test_what_needs_what_names_every_lesson():
    table = rows("What needs what")
    assert {name for row in table for name in lessons(row[0])} == LESSONS.keys() - {
        "Start here"
    }
    assert all(lessons(row[1]) for row in table)


def test_every_exercise_that_is_named_exists():
    named = set(
        re.findall(
            r"\b(\d\.\d)\b(?! [+|])",
            "\n".join(
                line.rpartition("|")[0].rpartition("|")[0]
                if "week" in line or "+" in line
                else line
                for line in PAGE.splitlines()
                if line.startswith("|")
            ),
        )
    )
    assert len(named) > 8 and named <= EXERCISES


def test_the_exercise_that_is_shown_runs_and_its_hints_are_told():
    [code] = re.findall(r"```python\n(.+?)```", PAGE, re.S)
    exec(code, {"exercise": checks.exercise, "about": checks.about, "rand": rand})
    try:
        checks.check("ps1/double", lambda x: x + x)
        for wrong, hint in (
            (lambda x: x * x, "square"),
            (lambda x: x, "nothing was doubled"),
        ):
            with pytest.raises(checks.Wrong, match=f"perhaps .*{hint}"):
                checks.check("ps1/double", wrong)
    finally:
        del checks.EXERCISES["ps1/double"]
