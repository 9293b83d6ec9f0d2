"""What every problem set must look like in git, and what leads to it.

Rules that hold for lessons too come from tests/support; each of the others is tried on
a small problem set that keeps it and on one that does not.
"""

import json
import re

import pytest

from course.school.checks import SETS as NAMES
from tests.support.lessons import (
    FOLDER,
    LESSONS,
    SHARED,
    a_cell,
    code_cells,
    find,
    markdown_cells,
    notebook,
    said,
    source,
    with_source,
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


def code_is_at_most_15_lines_a_cell_and_answers_40(nb):
    return [cell["id"] for cell in code_cells(nb)
            if len(source(cell).splitlines()) > (
                40 if meta(cell).get("solution") else 15)]


def text_is_at_most_150_words_a_cell_and_keys_250(nb):
    return [f"{cell['id']}: {words(source(cell))}" for cell in markdown_cells(nb)
            if words(source(cell)) > (250 if meta(cell).get("solution") else 150)]


# rules: what nbgrader needs

def cells_keep_only_tags_and_what_nbgrader_needs(nb):
    return [cell["id"] for cell in nb["cells"]
            if not {"nbgrader"} <= set(cell["metadata"]) <= {"nbgrader", "tags"}
            or cell.get("attachments")]


KEYS = {"schema_version", "cell_type", "grade_id", "grade", "solution", "locked", "task"}
KINDS = {  # cell_type, grade, solution, locked
    ("markdown", False, False, True), ("code", False, False, True),  # to read
    ("code", False, True, False),  # an answer
    ("code", True, False, True),  # its check
    ("markdown", True, True, False)}  # an answer in words


def a_cell_is_to_read_an_answer_or_a_check(nb):
    wrong = []
    for cell in nb["cells"]:
        about = meta(cell)
        kind = (cell["cell_type"], *map(about.get, ("grade", "solution", "locked")))
        if (kind not in KINDS or about["cell_type"] != cell["cell_type"]
                or about["schema_version"] != 3 or about["task"] is not False
                or set(about) != KEYS | ({"points"} if about["grade"] else set())):
            wrong.append(cell["id"])
    return wrong


def grade_ids_are_names_and_differ(nb):
    names = [meta(cell).get("grade_id", "") for cell in nb["cells"]]
    return [name for name in names if names.count(name) > 1
            or not re.fullmatch(r"[A-Za-z][\w-]*", name)]


def every_answer_is_a_solution_in_its_markers(nb):
    wrong = []
    for cell in nb["cells"]:
        marks = re.findall(r"^ *### (BEGIN|END) SOLUTION$", source(cell), re.M)
        whole = ["BEGIN", "END"] * (len(marks) // 2)
        if (marks != whole or source(cell).count("SOLUTION") != len(marks)
                or bool(marks) != bool(meta(cell).get("solution"))):
            wrong.append(cell["id"])
    return wrong


def every_check_is_seen_and_is_hidden_with_more_inputs(nb):
    form = (r'check\("(ps\d/\w+)", [\w, ]+\)\n### BEGIN HIDDEN TESTS\n'
            r'check\("\1", [\w, ]+, times=[2-9]\)\n### END HIDDEN TESTS')
    checks = [cell for cell in graded(nb) if cell["cell_type"] == "code"]
    hidden = [cell["id"] for cell in nb["cells"]
              if "HIDDEN" in source(cell) and cell not in checks]
    return hidden + [
        cell["id"] for cell in checks
        if not (match := re.fullmatch(form, source(cell)))
        or meta(cell)["grade_id"] != "check_" + match[1].partition("/")[2]]


# rules: the frame

def it_says_what_you_will_write_learn_and_need(nb):
    head, cells = source(nb["cells"][0]), graded(nb)
    frame = [r"\A# Problem set \d\. \S", r"^\*You will (write|do):?\*",
             r"^\*You will learn:?\*", r"^\*You need:?\*",
             rf"\b{points(cells, ['code']):g} points for code"]
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
        if points(graded({"cells": cells})) != float(said_there[1] if said_there else 0):
            wrong.append(heading)
    return wrong


def every_exercise_has_a_goal_and_a_hint(nb):
    wrong = []
    for heading, cells in exercises(nb):
        text = "\n".join(map(source, markdown_cells({"cells": cells})))
        if any(cell["cell_type"] == "code" for cell in graded({"cells": cells})) and (
                not re.search(r"^\*\*(Goal\.|Healthy:)\*\* \S", text, re.M)
                or "<summary>Hint 1</summary>" not in text):
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
            given = [int(points) for points in
                     re.findall(r"^ +\*(\d) points?:\*", source(key), re.M)]
            if not (asked == answered != [] and len(given) == len(asked)
                    and sum(given) == meta(key)["points"]):
                wrong.append(key["id"])
    return wrong


RULES = [
    it_has_at_most_50_cells, code_is_at_most_15_lines_a_cell_and_answers_40,
    text_is_at_most_150_words_a_cell_and_keys_250,
    cells_keep_only_tags_and_what_nbgrader_needs,
    a_cell_is_to_read_an_answer_or_a_check, grade_ids_are_names_and_differ,
    every_answer_is_a_solution_in_its_markers,
    every_check_is_seen_and_is_hidden_with_more_inputs,
    it_says_what_you_will_write_learn_and_need,
    every_exercise_has_its_points_in_its_heading, every_exercise_has_a_goal_and_a_hint,
    exercises_are_numbered_in_order, every_answer_has_its_check_below_it,
    every_question_in_words_has_a_key_with_its_points,
]
NAMED = {"ids": [rule.__name__ for rule in SHARED + RULES]}


def stored(name):
    path = EXERCISES / "source" / name / f"{name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["source", "release"])
@pytest.mark.parametrize("name", SETS)
def test_a_problem_set_is_at_most_200_kilobytes(name, kind):
    assert (EXERCISES / kind / name / f"{name}.ipynb").stat().st_size <= 200_000


@pytest.mark.parametrize("name", SETS)
def test_a_problem_set_has_its_own_number(name):
    assert source(stored(name)["cells"][0]).startswith(f"# Problem set {name[2:]}. ")
    checks = re.findall(r'check\("(\w+)/', "\n".join(map(source, stored(name)["cells"])))
    assert set(checks) == {name}


@pytest.mark.parametrize("rule", SHARED + RULES, **NAMED)
@pytest.mark.parametrize("name", SETS)
def test_a_problem_set_keeps_the_rule(name, rule):
    assert rule(stored(name)) == []


# what leads to the problem sets

@pytest.mark.parametrize("name", SETS)
def test_the_readme_has_a_row_with_the_points(name):
    rows = [line.split("|")[1:-1] for line in README.splitlines()
            if line.startswith(f"| [{name}]")]
    [(link, _, _, code, in_words)] = rows
    assert link.strip() == f"[{name}](release/{name}/{name}.ipynb)"
    cells = graded(stored(name))
    assert (int(code), int(in_words)) == (points(cells, ["code"]),
                                          points(cells, ["markdown"]))


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert len(links) >= len(SETS)
    assert [link for link in links if not (EXERCISES / link).exists()] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_names_its_exercises(lesson):
    nb = json.loads((FOLDER / f"{lesson}.ipynb").read_text(encoding="utf-8"))
    [own] = [source(cell) for cell in markdown_cells(nb)
             if source(cell).startswith("## On your own")]
    [line] = re.findall(r"^\*\*Graded\.\*\* (.+)$", own, re.M)
    assert re.findall(r"\[Problem set (\d)\]\(exercises/release/ps\1/ps\1\.ipynb\)",
                      line)
    for number in re.findall(r"\b(\d\.\d)\b", line):
        headings = [heading for heading, _ in exercises(stored(f"ps{number[0]}"))]
        assert [h for h in headings if h.startswith(f"{number} ")], number


# the rules, tried

def a_graded_cell(kind, name, text, **about):
    cell = a_cell(kind, name, text)
    cell["metadata"]["nbgrader"] = {
        "schema_version": 3, "cell_type": kind, "grade_id": name.replace("-", "_"),
        "grade": False, "solution": False, "locked": True, "task": False} | about
    return cell


def small_set():
    """Return a problem set that keeps every rule."""
    hints = "".join(f"<details><summary>Hint {i}</summary>\nSo.\n</details>\n"
                    for i in (1, 2))
    cells = [
        a_graded_cell("markdown", "title",
                      "# Problem set 7. Try\n\n*You will write:* a\n\n"
                      "*You will learn:* b\n\n*You need:* c. 2 points for code, 3 for "
                      "words."),
        a_graded_cell("code", "setup", "%matplotlib inline\nimport torch\n\n"
                                       "_ = torch.manual_seed(0)"),
        a_graded_cell("markdown", "double-task",
                      f"## 7.1 Twice (2 points)\n\n**Goal.** Two of it.\n\n{hints}"),
        a_graded_cell("code", "double",
                      "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n"
                      "    ### END SOLUTION", solution=True, locked=False),
        a_graded_cell("code", "check-double",
                      'check("ps7/double", double)\n### BEGIN HIDDEN TESTS\n'
                      'check("ps7/double", double, times=3)\n### END HIDDEN TESTS',
                      grade=True, points=2),
        a_graded_cell("markdown", "use-task", "## 7.2 Use it"),
        a_graded_cell("code", "use", "print(double(2))"),
        a_graded_cell("markdown", "words-task",
                      "## 7.3 In words (3 points, read)\n\n1. Why?"),
        a_graded_cell("markdown", "words", "### BEGIN SOLUTION\n1. So.\n   *3 points:* "
                      "1 for each so.\n### END SOLUTION",
                      grade=True, solution=True, locked=False, points=3),
        a_graded_cell("markdown", "end", "## More\n\nThat was all."),
    ]
    nb = notebook(cells)
    find(nb, "use")["outputs"] = [said("4\n")]
    return nb


@pytest.mark.parametrize("rule", SHARED + RULES, **NAMED)
def test_a_small_problem_set_keeps_the_rule(rule):
    assert rule(small_set()) == []


def replaced(name, old, new):
    def change(nb):
        assert old in find(nb, name)["source"]
        find(nb, name)["source"] = find(nb, name)["source"].replace(old, new)
    return change


def about(name, **changes):
    def change(nb):
        meta(find(nb, name)).update(changes)
    return change


def without(name, *keys):
    def change(nb):
        place = find(nb, name)["metadata"]
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]
    return change


def another_key(nb):
    find(nb, "use")["metadata"]["editable"] = False


def many_cells(nb):
    nb["cells"] += [a_cell("markdown", f"more-{i}", "more") for i in range(41)]


def no_check(nb):
    nb["cells"].remove(find(nb, "check-double"))


def no_answer(nb):
    nb["cells"].remove(find(nb, "double"))


checks = every_check_is_seen_and_is_hidden_with_more_inputs
markers = every_answer_is_a_solution_in_its_markers
kinds = a_cell_is_to_read_an_answer_or_a_check
keys = every_question_in_words_has_a_key_with_its_points
frame = it_says_what_you_will_write_learn_and_need
BROKEN = [
    (it_has_at_most_50_cells, many_cells),
    (code_is_at_most_15_lines_a_cell_and_answers_40, with_source("use", "x = 1\n" * 16)),
    (code_is_at_most_15_lines_a_cell_and_answers_40,
     with_source("double", "x = 1\n" * 41)),
    (text_is_at_most_150_words_a_cell_and_keys_250, with_source("end", "word " * 151)),
    (text_is_at_most_150_words_a_cell_and_keys_250, with_source("words", "word " * 251)),
    (cells_keep_only_tags_and_what_nbgrader_needs, another_key),
    (cells_keep_only_tags_and_what_nbgrader_needs, without("use", "nbgrader")),
    (kinds, about("double", locked=True)), (kinds, about("use", cell_type="markdown")),
    (kinds, about("use", schema_version=2)), (kinds, about("use", task=True)),
    (kinds, about("use", points=1)), (kinds, about("use", checksum="0")),
    (kinds, without("words", "nbgrader", "points")),
    (grade_ids_are_names_and_differ, about("use", grade_id="double")),
    (grade_ids_are_names_and_differ, about("use", grade_id="cell 3")),
    (markers, replaced("double", "### END SOLUTION", "")),
    (markers, replaced("double", "### END SOLUTION", "# END SOLUTION")),
    (markers, replaced("double", "### BEGIN SOLUTION", "### END SOLUTION")),
    (markers, with_source("words", "So.")),
    (markers, with_source("use", "### BEGIN SOLUTION\nx = 1\n### END SOLUTION")),
    (checks, replaced("check-double", ", times=3", "")),
    (checks, replaced("check-double", "times=3", "times=1")),
    (checks, replaced("check-double", '"ps7/double", double)', '"ps7/triple", double)')),
    (checks, with_source("check-double", 'check("ps7/double", double)')),
    (checks, replaced("check-double", "END HIDDEN", "END OF HIDDEN")),
    (checks, about("check-double", grade_id="check_triple")),
    (checks, with_source("use", "### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS")),
    (frame, replaced("title", "# Problem set 7. Try", "# Try")),
    (frame, replaced("title", "*You need:*", "Before:")),
    (frame, replaced("title", "2 points for code", "12 points for code")),
    (frame, replaced("title", "3 for words", "4 for words")),
    (every_exercise_has_its_points_in_its_heading, about("check-double", points=3)),
    (every_exercise_has_its_points_in_its_heading,
     replaced("words-task", "(3 points, read)", "")),
    (every_exercise_has_its_points_in_its_heading,
     replaced("use-task", "Use it", "Use it (1 point)")),
    (every_exercise_has_a_goal_and_a_hint, replaced("double-task", "**Goal.**", "Goal:")),
    (every_exercise_has_a_goal_and_a_hint, replaced("double-task", "Hint 1", "Why?")),
    (exercises_are_numbered_in_order, replaced("use-task", "7.2", "7.4")),
    (exercises_are_numbered_in_order, replaced("title", "set 7", "set 8")),
    (every_answer_has_its_check_below_it, no_check),
    (every_answer_has_its_check_below_it, no_answer),
    (keys, replaced("words", "   *3 points:*", "")),
    (keys, replaced("words", "*3 points:*", "*2 points:*")),
    (keys, replaced("words-task", "1. Why?", "1. Why?\n2. How?")),
]


@pytest.mark.parametrize("rule, change", BROKEN,
                         ids=[rule.__name__ for rule, _ in BROKEN])
def test_a_problem_set_that_breaks_the_rule_is_seen(rule, change):
    nb = small_set()
    change(nb)
    assert rule(nb) != []


def test_every_rule_was_tried_on_a_notebook_that_breaks_it():
    assert {rule for rule, _ in BROKEN} == set(RULES)


def test_the_notebook_that_breaks_nothing_has_every_kind_of_cell():
    found = {(c["cell_type"], *(meta(c)[k] for k in ("grade", "solution", "locked")))
             for c in small_set()["cells"]}
    assert found == KINDS


def test_every_problem_set_has_its_notebook():
    assert SETS == list(NAMES)
