"""What every lesson must look like in git, whatever it teaches.

A rule is a function from a notebook to the list of what breaks it.
"""

import ast
import inspect
import json
import re
import textwrap

import pytest

import manual_dp
from tests.support.lessons import (
    FOLDER,
    LESSONS,
    SHARED,
    cells_keep_only_their_tags,
    code_cells,
    lost_links,
    markdown_cells,
    minutes,
    no_line_of_code_or_output_is_wider_than_78,
    source,
    tags,
    text_is_at_most_120_words_a_cell,
    texts,
    tokens,
    tree,
    words,
)

# rules: size, text, code


def code_is_at_most_450_tokens_a_cell_and_600_where_it_is_folded(nb):
    # some 40 and 55 lines; tokens, since a line more or less is the formatter's matter
    return [
        cell["id"]
        for cell in code_cells(nb)
        if tokens(source(cell)) > (600 if "hide-input" in tags(cell) else 450)
    ]


def parameters_come_second_and_are_literals(nb):
    cell = code_cells(nb)[1]
    if [c["id"] for c in code_cells(nb) if "parameters" in tags(c)] != [cell["id"]]:
        return ["the second code cell, and no other, is tagged parameters"]
    return [ast.unparse(node) for node in tree(cell).body if not is_literal(node)]


def is_literal(node):
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return len(node.targets) == 1


def body(function):
    """Return the statements of a function as text, without its docstring."""
    statements = function.body
    if ast.get_docstring(function):
        statements = statements[1:]
    return "\n".join(map(ast.unparse, statements))


def no_public_function_is_retyped(nb):
    ours = {}
    for name in manual_dp.__all__:
        text = textwrap.dedent(inspect.getsource(getattr(manual_dp, name)))
        ours[name] = body(ast.parse(text).body[0])
    return [
        f"{cell['id']}: {node.name}"
        for cell in code_cells(nb)
        for node in ast.walk(tree(cell))
        if isinstance(node, ast.FunctionDef) and ours.get(node.name) == body(node)
    ]


# rules: the frame, what a reader meets


def numbers_are_printed_and_not_verdicts(nb):
    said = [
        word
        for cell in code_cells(nb)
        for output in cell["outputs"]
        for word in re.findall(r"\b(?:True|False)\b", texts(output))
    ]
    return [] if len(said) <= 4 else [f"{len(said)} times True or False"]


def the_reader_writes_something(nb):
    # what was not written yet says so, and the course's own stands folded below it
    wrong = [
        cell["id"]
        for cell in code_cells(nb)
        if re.search(r"^(?:_ = )?show\(", source(cell), re.M)
        and not {"hide-output", "hide-input"} & set(tags(cell))
    ]
    return wrong if written(nb) else [*wrong, "nothing"]


def written(nb):
    return [
        cell["id"]
        for cell in code_cells(nb)
        if "NotImplementedError" in source(cell) and "your lines" in source(cell)
    ]


def lines(cells):
    return sum(len(source(cell).splitlines()) for cell in cells)


def it_has_one_idea(nb):
    folded = [cell for cell in code_cells(nb) if "hide-input" in tags(cell)]
    seen = [cell for cell in code_cells(nb) if "hide-input" not in tags(cell)]
    sizes = {
        "cells": (len(nb["cells"]), 34),
        "lines of code that are seen": (lines(seen), 110),
        "lines of code that are folded": (lines(folded), 60),
    }
    return [f"{n} {what}" for what, (n, most) in sizes.items() if n > most]


def its_answer_is_folded_below_its_question(nb):
    first = "\n".join(source(cell) for cell in nb["cells"][:8])
    return [] if "<details><summary>In short</summary>" in first else ["In short"]


def its_minutes_are_true(nb):
    text = "\n\n".join(map(source, markdown_cells(nb)))
    seen = [cell for cell in code_cells(nb) if "hide-input" not in tags(cell)]
    guesses, functions = text.count("**Guess:**"), len(written(nb))
    counted = words(text) / 150 + lines(seen) / 12 + guesses + 15 * functions
    counted += 5  # the task at the end
    said = minutes(nb)
    if counted > 43:
        over = 150 * (counted - 43)
        return [f"{counted:.2f} minutes by the rule, 43 at most: {over:.0f} words over"]
    near = abs(said - counted) <= 3
    return [] if near else [f"says {said} minutes, by the rule {counted:.0f}"]


def no_function_is_shown_above_its_task(nb):
    cells, asked = code_cells(nb), {}
    for i, cell in enumerate(cells):
        if "NotImplementedError" in source(cell):
            for node in ast.walk(tree(cell)):
                if isinstance(node, ast.FunctionDef):
                    asked[node.name] = i
    return [
        f"{cell['id']} shows {name}: move it below {cells[asked[name]]['id']}"
        for i, cell in enumerate(cells)
        for name in re.findall(r"\bshow\((?:\w+\.)*(\w+)", source(cell))
        if asked.get(name, -1) > i
    ]


def the_first_screen_ends_with_one_line_of_frame(nb):
    # title and question, set-up, settings, the run that makes one want the answer
    first = [cell for cell in nb["cells"][:8] if cell["cell_type"] == "markdown"]
    lines = [
        line
        for cell in first
        for line in source(cell).splitlines()
        if re.search(r"\*You need", line) and re.search(r"\*Time:\*", line)
    ]
    return [] if len(lines) == 1 else ["one line with *You will*, *You need*, *Time:*"]


def it_ends_with_three_bullets_questions_and_sources(nb):
    text = "\n\n".join(map(source, markdown_cells(nb)))
    summary = re.search(r"^## Summary\n(.*?)(?=^## |<details>)", text, re.M | re.S)
    wrong = []
    if not summary:
        wrong.append("the heading ## Summary")
    elif len(re.findall(r"^[-*] ", summary[1], re.M)) != 3:
        wrong.append("a summary of three bullets")
    if summary and text[summary.end() :].count("<details>") not in (2, 3):
        wrong.append("two or three questions with their answers in <details>")
    wrong += [
        f"**{name}"
        for name in ("Graded", "Sources")
        if not re.search(rf"^\*\*{name}", text, re.M)
    ]
    return wrong


RULES = [
    *SHARED,
    code_is_at_most_450_tokens_a_cell_and_600_where_it_is_folded,
    text_is_at_most_120_words_a_cell,
    cells_keep_only_their_tags,
    parameters_come_second_and_are_literals,
    no_public_function_is_retyped,
    no_line_of_code_or_output_is_wider_than_78,
    numbers_are_printed_and_not_verdicts,
    the_reader_writes_something,
    the_first_screen_ends_with_one_line_of_frame,
    it_ends_with_three_bullets_questions_and_sources,
    it_has_one_idea,
    its_answer_is_folded_below_its_question,
    its_minutes_are_true,
    no_function_is_shown_above_its_task,
]


def stored(lesson):
    return json.loads((FOLDER / f"{lesson}.ipynb").read_text(encoding="utf-8"))


def test_the_lessons_are_all_there():
    found = {path.stem for path in FOLDER.glob("[0-9][0-9]_*.ipynb")}
    assert sorted(found)[: len(LESSONS)] == LESSONS


def test_each_file_is_laid_out_as_refresh_stores_it():
    # else a diff is the whole file
    for path in FOLDER.glob("*.ipynb"):
        text = path.read_text(encoding="utf-8")
        stored = json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
        assert text == stored, f"{path.name}: run `make refresh` for it"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_keeps_every_rule(lesson):
    nb = stored(lesson)
    broken = [f"{rule.__name__}: {said}" for rule in RULES for said in rule(nb)]
    assert not broken, "\n".join(broken)
    assert (FOLDER / f"{lesson}.ipynb").stat().st_size <= 200_000
    assert source(nb["cells"][0]).startswith(f"# {int(lesson[:2])}. ")


@pytest.fixture(scope="module")
def lost():
    return lost_links(FOLDER)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_link_of_a_lesson_leads_to_a_heading_that_is_there(lesson, lost):
    mine = [f"{to}#{head}" for page, to, head in lost if page == f"{lesson}.ipynb"]
    assert not mine, f"no such file or heading: {', '.join(mine)}"


def test_a_lesson_leads_twice_to_those_beside_it():
    for word, others, lessons in (
        ("Before", LESSONS, LESSONS[1:]),
        ("Next", LESSONS[1:], LESSONS),
    ):
        for lesson, other in zip(lessons, others):
            text = "".join(map(source, markdown_cells(stored(lesson))))
            links = re.findall(rf"\[{word}: [^\]]*\]\({other}\.ipynb\)", text)
            assert len(links) == 2, f"{lesson} does not name {other} as {word}"
