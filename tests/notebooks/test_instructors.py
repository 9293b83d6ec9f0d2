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


def title(path):
    """Return "03 All-reduce by hand": its file's number, and its title."""
    said = re.match(r"# \d+\. (.+)", markdown(path)[0])[1]
    return f"{path.name[:2]} {said}"


LESSONS = {  # title: minutes
    title(path): minutes(json.loads(path.read_text(encoding="utf-8")))
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
        [entry.strip() for entry in line.strip().strip("|").split("|")]
        for line in section(title).splitlines()
        if line.strip().startswith("|")
    ][2:]


@pytest.mark.parametrize("title", ["Fourteen weeks", "Six weeks"])
def test_a_weeks_hours_are_its_lessons_minutes_times_one_and_a_half(title):
    for week, names, _, hours in rows(title):
        if lessons(names):
            total = sum(LESSONS[name] for name in lessons(names))
            said = float(hours.split(" + ")[0])
            assert abs(said - 1.5 * total / 60) <= 0.25, f"week {week}"


def numbers_of(one, text):
    """Return the numbers of lessons that a text names: a and b, or a to c."""
    return [
        number
        for first, last in re.findall(rf"{one}(?:[^,;|]*? to {one})?", text)
        for number in range(int(first), int(last or first) + 1)
    ]


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


def needs():
    """Return {lesson: what its row in *What needs what* says}; "a to b" is all of these."""
    found = {}
    for names, needed in rows("What needs what"):
        numbers = numbers_of(r"(\d\d) [A-Z]", needed)
        for name in lessons(names):
            found[name] = [one for one in LESSONS if int(one[:2]) in numbers]
    return found


def test_what_needs_what_is_what_the_lessons_say():
    said = {}
    for path in NOTEBOOKS.glob("[0-9]*.ipynb"):
        line = re.search(r"\*You need\*(.+?)\*Time", "\n".join(markdown(path)), re.S)
        numbers = (
            numbers_of(r"\[[^\]]+\]\((\d\d)_\w+\.ipynb\)", line[1]) if line else ()
        )
        if numbers:
            said[title(path)] = [one for one in LESSONS if int(one[:2]) in numbers]
    assert needs() == said and len(said) == len(LESSONS) - 1


@pytest.mark.parametrize("title", ["Fourteen weeks", "Six weeks"])
def test_what_a_lesson_or_a_set_needs_comes_before_it_in_a_plan(title):
    needed, done = needs(), set()
    for _, names, sets, _ in rows(title):
        for name in lessons(names) if "session" not in names else []:
            assert done.issuperset(needed.get(name, [])), f"{name} comes too early"
            done.add(name)
        for number in re.findall(r"ps\d", sets):
            assert needed_by_set(number, sets) <= done, f"{number} comes too early"


LINK = r"\[[^\]]+\]\((?:\.\./)+(\d\d)_\w+\.ipynb\)"  # to a lesson, from a set


def needed_by_set(name, entry):
    """Return the lessons that a set's first cell links to: a and b, or a to c."""
    first = markdown(NOTEBOOKS / f"exercises/source/{name}/{name}.ipynb")[0]
    [line] = re.findall(r"^\*You need:\*(.+?)(?:;|\. )", first, re.M)
    numbers = numbers_of(LINK, line)
    paths = [next(NOTEBOOKS.glob(f"{n:02}_*.ipynb")) for n in numbers]
    found = {title(path) for path in paths}
    if ":" in entry and "`Outer`" not in entry:  # of ps8, only Outer needs it
        found -= {"17 How often to synchronise"}
    return found


def test_the_table_of_sets_names_the_lessons_that_a_sets_first_cell_links_to():
    table = re.findall(r"^\| \[(ps\d)\]\S+ \| (.+?) \|", README, re.M)
    assert len(table) > 8
    for name, said in table:
        first = markdown(NOTEBOOKS / f"exercises/source/{name}/{name}.ipynb")[0]
        assert sorted(numbers_of(r"(\d\d)", said)) == sorted(numbers_of(LINK, first)), (
            name
        )


def test_what_stands_in_the_students_zip_is_there():
    table = [row for row in rows("Homework and grading") if re.match(r"\d\.\d", row[0])]
    assert len(table) > 15
    for _, where in table:
        named = re.findall(r"`([\w./]+)`", where)
        paths = [
            path
            for name in named
            if name.endswith(".py")
            for folder in ("..", ".", "../manual_dp/ranks")
            if (path := NOTEBOOKS / folder / name).exists()
        ]
        assert len(paths) >= sum(name.endswith(".py") for name in named), where
        if not paths:  # it stands in a notebook
            sets = NOTEBOOKS.glob("exercises/release/ps4/*.ipynb")
            paths = [*NOTEBOOKS.glob("[0-9]*.ipynb"), *sets]
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in named:
            assert name.endswith(".py") or re.search(rf"\b{name}\b", text), name


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
