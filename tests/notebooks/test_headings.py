"""Exercises are known by name: their numbers and points are written by a tool."""

import shutil

import headings
import nbformat
import pytest
from stored import find_files

from tests.support.lessons import FOLDER


@pytest.fixture
def folder(tmp_path):
    """Return a folder with problem set 1, the table of sets and a lesson."""
    for name in "exercises/source/ps1/ps1.ipynb", "exercises/README.md":
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / name, tmp_path / name)
    (tmp_path / "03_sum.ipynb").write_text("1.3 (`weighted_allreduce`), 1.7 (In words)")
    return tmp_path


def change(folder, cells):
    """Let `cells` change the list of the set's cells."""
    path = folder / "exercises/source/ps1/ps1.ipynb"
    nb = nbformat.read(path, 4)
    nb.cells = cells(nb.cells)
    nbformat.write(nb, path)


def first_lines(folder):
    nb = nbformat.read(folder / "exercises/source/ps1/ps1.ipynb", 4)
    lines = [cell.source.partition("\n")[0] for cell in nb.cells]
    return [line for line in lines if line.startswith("## ")]


def test_what_is_in_git_is_numbered_already(tmp_path):
    for path in find_files(FOLDER, headings.PAGES):
        copy = tmp_path / path.relative_to(FOLDER)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    assert headings.mend(tmp_path) == []


def test_an_exercise_that_goes_renumbers_what_comes_after_it(folder):
    before = first_lines(folder)
    at = before.index(next(line for line in before if "## 1.3" in line))
    starts = [f"## 1.{n} " for n in (1, 2, 3)]

    def without_the_second(cells):
        texts = [cell.source for cell in cells]
        begins = [
            next(i for i, text in enumerate(texts) if text.startswith(start))
            for start in starts
        ]
        return cells[: begins[1]] + cells[begins[2] :]

    change(folder, without_the_second)
    changed = headings.mend(folder)
    assert [path.name for path in changed] == ["ps1.ipynb", "README.md", "03_sum.ipynb"]
    after = first_lines(folder)
    assert after[1] == before[at].replace("## 1.3", "## 1.2")
    assert len(after) == len(before) - 1
    lesson = (folder / "03_sum.ipynb").read_text()
    assert lesson == "1.2 (`weighted_allreduce`), 1.6 (In words)"
    row = next(
        line
        for line in (folder / "exercises/README.md").read_text().splitlines()
        if line.startswith("| [ps1]")
    )
    assert row.endswith("| 12 | 4 |") and headings.mend(folder) == []


def is_worth(number, monkeypatch):
    """Let exercise 1.4 have so many points."""
    real = headings.find

    class Worth:
        points = number

    monkeypatch.setattr(
        headings, "find", lambda n: Worth if n == "ps1/clipped_sgd" else real(n)
    )


def test_points_are_those_of_the_check(folder, monkeypatch):
    is_worth(2.5, monkeypatch)
    headings.mend(folder)
    [line] = [line for line in first_lines(folder) if "## 1.4" in line]
    assert "(2.5 points" in line
    nb = nbformat.read(folder / "exercises/source/ps1/ps1.ipynb", 4)
    assert "15.5 points for code, 4 for words" in nb.cells[0].source
    [check] = [c for c in nb.cells if c.id == "check-clipped-sgd"]
    assert check.metadata.nbgrader.points == 2.5


def test_an_exercise_with_0_points_is_called_left_out_until_it_has_points_again(
    folder, monkeypatch
):
    real, before = headings.find, first_lines(folder)
    is_worth(0, monkeypatch)
    headings.mend(folder)
    [line] = [line for line in first_lines(folder) if "## 1.4" in line]
    assert line.endswith(" (left out, 0 points, about 20 minutes)")
    assert headings.mend(folder) == []
    monkeypatch.setattr(headings, "find", real)
    headings.mend(folder)
    assert first_lines(folder) == before


def test_what_names_no_exercise_stays(folder):
    text = "torch 2.5 (released), 3.2 (Two links) 1.3 MB"
    (folder / "03_sum.ipynb").write_text(text)
    headings.mend(folder)
    assert (folder / "03_sum.ipynb").read_text() == text


def test_an_exercise_that_is_gone_is_told_where_it_is_named(folder):
    (folder / "03_sum.ipynb").write_text("1.3 (`no_such`)")
    with pytest.raises(ValueError, match="03_sum.ipynb names no_such, and ps1 has no"):
        headings.mend(folder)
