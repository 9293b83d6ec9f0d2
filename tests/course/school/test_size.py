"""A set may not grow again: lines and files of the school, and of its tests."""

from pathlib import Path

import course.school

SCHOOL = Path(course.school.__file__).parent
TESTS = [*Path(__file__).parent.rglob("*.py"),
         Path(__file__).parents[2] / "support" / "school.py"]


def lines(path):
    return len(path.read_text().splitlines())


def test_the_school_is_at_most_5000_lines_in_20_files():
    files = list(SCHOOL.rglob("*.py"))
    assert sum(map(lines, files)) <= 5_000 and len(files) <= 20
    assert {path.name: lines(path) for path in files if lines(path) > 400} == {}


def test_its_tests_are_at_most_4000_lines():
    assert sum(map(lines, TESTS)) <= 4_000
