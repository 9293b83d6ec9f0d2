"""What every problem set must look like in git, and what leads to it.

Rules that hold for lessons too come from tests/support/lessons.py.
"""

import json
import re

import headings  # notebooks/tools
import pytest

from course.school.checks import SETS as NAMES
from tests.support.lessons import (
    FOLDER,
    LESSONS,
    SHARED,
    code_cells,
    markdown_cells,
    source,
    tokens,
    words,
)

EXERCISES = FOLDER / "exercises"
README = (EXERCISES / "README.md").read_text(encoding="utf-8")
SETS = sorted(path.stem for path in (EXERCISES / "source").glob("*/*.ipynb"))


def meta(cell):
    return cell["metadata"].get("nbgrader", {})


def graded(nb):
    return [cell for cell in nb["cells"] if meta(cell).get("grade")]


def points(cells, kind=("code", "markdown")):
    return sum(meta(cell)["points"] for cell in cells if cell["cell_type"] in kind)


# rules: size


def it_has_at_most_50_cells(nb):
    return [] if len(nb["cells"]) <= 50 else [f"{len(nb['cells'])} cells"]


def code_is_at_most_250_tokens_a_cell_and_answers_350(nb):
    # some 25 and 35 lines; tokens, since a line more or less is the formatter's matter
    return [
        cell["id"]
        for cell in code_cells(nb)
        if tokens(source(cell)) > (350 if meta(cell).get("solution") else 250)
    ]


def text_is_at_most_150_words_a_cell_and_keys_250(nb):
    return [
        f"{cell['id']}: {words(source(cell))}"
        for cell in markdown_cells(nb)
        if words(source(cell)) > (250 if meta(cell).get("solution") else 150)
    ]


# rules: what nbgrader needs


def cells_keep_only_tags_and_what_nbgrader_needs(nb):
    return [
        cell["id"]
        for cell in nb["cells"]
        if not {"nbgrader"} <= set(cell["metadata"]) <= {"nbgrader", "tags"}
        or cell.get("attachments")
    ]


KINDS = {  # cell_type, grade, solution, locked
    ("markdown", False, False, True),
    ("code", False, False, True),  # to read
    ("code", False, True, False),  # an answer
    ("code", True, False, True),  # its check
    ("markdown", True, True, False),
}  # an answer in words


def a_cell_is_to_read_an_answer_or_a_check(nb):
    wrong = []
    for cell in nb["cells"]:
        kind = map(meta(cell).get, ("grade", "solution", "locked"))
        if (cell["cell_type"], *kind) not in KINDS:
            wrong.append(cell["id"])
    return wrong


def every_check_is_seen_and_is_hidden_with_more_inputs(nb):
    form = (
        r'check\("(ps\d/\w+)", [\w, ]+\)\n### BEGIN HIDDEN TESTS\n'
        r'check\("\1", [\w, ]+, times=[2-9]\)\n### END HIDDEN TESTS'
    )
    checks = [cell for cell in graded(nb) if cell["cell_type"] == "code"]
    hidden = [
        cell["id"]
        for cell in nb["cells"]
        if "HIDDEN" in source(cell) and cell not in checks
    ]
    return hidden + [
        cell["id"]
        for cell in checks
        if not (match := re.fullmatch(form, source(cell)))
        or meta(cell)["grade_id"] != "check_" + match[1].partition("/")[2]
    ]


# rules: the frame


def it_says_what_you_will_write_learn_and_need(nb):
    head, cells = source(nb["cells"][0]), graded(nb)
    frame = [
        r"\A# Problem set \d\. \S",
        r"^\*You will (write|do):?\*",
        r"^\*You will learn:?\*",
        r"^\*You need:?\*",
        rf"\b{points(cells, ['code']):g} points for code",
    ]
    if points(cells, ["markdown"]):
        frame.append(rf"for code, {points(cells, ['markdown'])} for words")
    return [line for line in frame if not re.search(line, head, re.M)]


def exercises(nb):
    """Return pairs (heading, cells), one for each `## N.i` of the notebook."""
    found = []
    for cell in nb["cells"]:
        heading = re.match(r"## (\d\.\d+ .+)", source(cell))
        if heading and cell["cell_type"] == "markdown":
            found.append((heading[1], []))
        elif re.match("## ", source(cell)):
            found.append(("", []))
        if found:
            found[-1][1].append(cell)
    return found


def every_exercise_has_its_points_in_its_heading(nb):
    wrong = []
    for heading, cells in exercises(nb):
        said_there = re.search(r"\(([\d.]+) points?\b[^)]*\)$", heading)
        if points(graded({"cells": cells})) != float(
            said_there[1] if said_there else 0
        ):
            wrong.append(heading)
    return wrong


def every_exercise_has_a_goal_and_a_hint(nb):
    wrong = []
    for heading, cells in exercises(nb):
        text = "\n".join(map(source, markdown_cells({"cells": cells})))
        if any(cell["cell_type"] == "code" for cell in graded({"cells": cells})) and (
            not re.search(r"^\*\*(Goal\.|Healthy:)\*\* \S", text, re.M)
            or "<summary>Hint 1</summary>" not in text
        ):
            wrong.append(heading)
    return wrong


def exercises_are_numbered_in_order(nb):
    number = re.match(r"# Problem set (\d)", source(nb["cells"][0]))
    found = [heading.split()[0] for heading, _ in exercises(nb) if heading]
    wanted = [f"{number[1]}.{i + 1}" for i in range(len(found))] if number else []
    return [] if found == wanted != [] else [found]


def every_answer_has_its_check_below_it(nb):
    # so that a learner who has written it runs the next cell
    wrong, open_answers = [], []
    for cell in nb["cells"]:
        if meta(cell).get("solution") and cell["cell_type"] == "code":
            open_answers.append(cell)
        elif meta(cell).get("grade") and cell["cell_type"] == "code":
            if not open_answers:
                wrong.append(cell["id"])
            open_answers = []
    return wrong + [cell["id"] for cell in open_answers]


def every_question_in_words_has_a_key_with_its_points(nb):
    wrong = []
    for question, key in zip(nb["cells"], nb["cells"][1:]):
        if meta(key).get("grade") and key["cell_type"] == "markdown":
            asked = re.findall(r"^(\d)\. ", source(question), re.M)
            answered = re.findall(r"^(\d)\. ", source(key), re.M)
            given = [
                int(points)
                for points in re.findall(r"^ +\*(\d) points?:\*", source(key), re.M)
            ]
            if not (
                asked == answered != []
                and len(given) == len(asked)
                and sum(given) == meta(key)["points"]
            ):
                wrong.append(key["id"])
    return wrong


RULES = [
    it_has_at_most_50_cells,
    code_is_at_most_250_tokens_a_cell_and_answers_350,
    text_is_at_most_150_words_a_cell_and_keys_250,
    cells_keep_only_tags_and_what_nbgrader_needs,
    a_cell_is_to_read_an_answer_or_a_check,
    every_check_is_seen_and_is_hidden_with_more_inputs,
    it_says_what_you_will_write_learn_and_need,
    every_exercise_has_its_points_in_its_heading,
    every_exercise_has_a_goal_and_a_hint,
    exercises_are_numbered_in_order,
    every_answer_has_its_check_below_it,
    every_question_in_words_has_a_key_with_its_points,
]


def stored(name):
    path = EXERCISES / "source" / name / f"{name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SETS)
def test_a_problem_set_keeps_every_rule(name):
    nb = stored(name)
    assert {rule.__name__: rule(nb) for rule in SHARED + RULES if rule(nb)} == {}
    assert source(nb["cells"][0]).startswith(f"# Problem set {name[2:]}. ")
    checks = re.findall(r'check\("(\w+)/', "\n".join(map(source, nb["cells"])))
    assert set(checks) == {name}
    for kind in ("source", "release"):
        assert (EXERCISES / kind / name / f"{name}.ipynb").stat().st_size <= 200_000


# what leads to the problem sets


@pytest.mark.parametrize("name", SETS)
def test_the_readme_has_a_row_with_the_points(name):
    rows = [
        line.split("|")[1:-1]
        for line in README.splitlines()
        if line.startswith(f"| [{name}]")
    ]
    [(link, _, _, code, in_words)] = rows
    assert link.strip() == f"[{name}](release/{name}/{name}.ipynb)"
    cells = graded(stored(name))
    assert (int(code), int(in_words)) == (
        points(cells, ["code"]),
        points(cells, ["markdown"]),
    )


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_names_its_exercises(lesson):
    nb = json.loads((FOLDER / f"{lesson}.ipynb").read_text(encoding="utf-8"))
    text = "\n".join(map(source, markdown_cells(nb)))
    [line] = re.findall(r"^\*\*Graded\.\*\* (.+)$", text, re.M)
    assert re.findall(
        r"\[Problem set (\d)\]\(exercises/release/ps\1/ps\1\.ipynb\)", line
    )
    # an exercise is named, so that `make refresh` can write its number
    named = re.sub(headings.NAMED, "", line)
    assert re.findall(r"\b\d\.\d+\b", named) == []


def test_every_problem_set_has_its_notebook():
    assert SETS == list(NAMES)
