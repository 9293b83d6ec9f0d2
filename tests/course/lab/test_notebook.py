import inspect
import re
from pathlib import Path

import nbformat
import pytest

import manual_dp
from course import show
from course.lab import notebook

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
# course/ is a package: a lesson has it by its installation, wherever it lies
BESIDE = {path.name for path in NOTEBOOKS.iterdir() if path.is_dir()} - {"course"}
CALL = re.compile(r"need_folders\((.*)\)")


def test_a_function_is_shown_as_its_file_has_it_and_as_code_in_a_notebook():
    for name in manual_dp.__all__:
        source = inspect.getsource(getattr(manual_dp, name)).rstrip()
        assert repr(show(getattr(manual_dp, name))) == source
        assert (
            show(getattr(manual_dp, name))._repr_markdown_()
            == f"```python\n{source}\n```"
        )


def test_folders_that_are_missing_are_named_with_the_place_to_go_to(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(NOTEBOOKS)
    notebook.need_folders("programs", "results", "config")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        notebook.need_folders("programs", "results", "config")
    assert str(caught.value) == (
        "this lesson reads programs/ and config/ beside it, which is not here: type "
        f"%cd {NOTEBOOKS} and run this cell again"
    )
    monkeypatch.setattr(notebook, "__file__", str(tmp_path / "site/course/lab/a.py"))
    with pytest.raises(
        FileNotFoundError,
        match=r"clone the course's repository \(git "
        r"clone\), then type %cd manual_dp/notebooks and run",
    ):
        notebook.need_folders("programs")


def test_a_lesson_asks_for_what_it_reads_before_it_imports_anything_else():
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        code = [
            cell.source
            for cell in nbformat.read(path, 4).cells
            if cell.cell_type == "code"
        ]
        asked = CALL.search(code[0])
        text = "\n".join(code).replace(asked[0] if asked else "", "")
        read = {
            name
            for name in BESIDE
            if re.search(rf"[\"']{name}[/\"']|^ *(from|import) {name}\b", text, re.M)
        }
        assert read == set(re.findall(r'"(\w+)"', asked[1]) if asked else ()), path.stem
        if asked:
            lines = [line for line in code[0].splitlines() if line]
            assert lines[2] == asked[0], path.stem
