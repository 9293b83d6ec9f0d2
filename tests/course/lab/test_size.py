"""The lab may not grow again: one page for one kind of thing."""

import ast
from pathlib import Path

import course.lab

LAB = Path(course.lab.__file__).parent
FIGURES = [*(LAB / "figures").glob("*.py")]


def lines(path):
    return len(path.read_text().splitlines())


def test_pictures_are_at_most_1750_lines_in_10_files():
    assert sum(map(lines, FIGURES)) <= 1_750 and len(FIGURES) <= 10


def test_a_file_is_a_page_and_a_function_fits_on_a_screen():
    pages = [path for path in [*FIGURES, *LAB.glob("*.py")] if path.stem != "__init__"]
    assert {path.name: lines(path) for path in pages if not 40 <= lines(path) <= 300} == {}
    assert [node.name for path in pages for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
            and node.end_lineno - node.lineno >= 60] == []
