"""Pictures may not grow again; tests/test_tree.py holds the rest of the lab."""

from pathlib import Path

import course.lab

FIGURES = [*(Path(course.lab.__file__).parent / "figures").glob("*.py")]


def test_pictures_are_at_most_1750_lines_in_10_files():
    lines = sum(len(path.read_text().splitlines()) for path in FIGURES)
    assert lines <= 1_750 and len(FIGURES) <= 10
