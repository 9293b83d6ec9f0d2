"""A lesson that was opened alone says what to type; one that reads files asks first."""

import re
from pathlib import Path

import nbformat
import pytest

from course.lab import folder
from course.lab.folder import need_folders

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
# course/ is a package: a lesson has it by its installation, wherever it lies
BESIDE = sorted({path.name for path in NOTEBOOKS.iterdir() if path.is_dir()} - {"course"})
CALL = re.compile(r"need_folders\((.*)\)")


def test_folders_that_are_here_are_enough(monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    assert need_folders("programs", "results", "config") is None


def test_what_is_missing_is_named_with_the_place_to_go_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        need_folders("programs", "results", "config")
    assert str(caught.value) == (
        "this lesson reads programs/ and config/ beside it, which is not here: type "
        f"%cd {NOTEBOOKS} and run this cell again")


def test_without_the_repository_it_has_to_be_cloned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder.manual_dp, "__file__", str(tmp_path / "site/m/__init__.py"))
    with pytest.raises(FileNotFoundError, match=r"clone the course's repository \(git "
                       r"clone\), then type %cd manual_dp/notebooks and run"):
        need_folders("programs")


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem[:2])
def test_a_lesson_asks_for_what_it_reads_before_it_imports_anything_else(path):
    code = [cell.source for cell in nbformat.read(path, 4).cells
            if cell.cell_type == "code"]
    asked = CALL.search(code[0])
    text = "\n".join(code).replace(asked[0] if asked else "", "")
    read = {name for name in BESIDE
            if re.search(rf"[\"']{name}[/\"']|^from {name} |^import {name}\b", text, re.M)}
    assert read == set(re.findall(r'"(\w+)"', asked[1]) if asked else ())
    if asked:
        assert code[0].splitlines()[1:3] == [
            "from course.lab.folder import need_folders", asked[0]]
