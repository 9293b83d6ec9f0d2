"""On a GPU: every lesson as it is stored.

Skipped without a GPU. A lesson runs whole, in a kernel that sees the GPUs, and nbval
compares its outputs with the stored ones, which a CPU has printed.
"""

import nbformat
import pytest
import torch

from tests.support.stored import LESSONS, nbval

GPUS = torch.cuda.device_count()
gpu = pytest.mark.skipif(GPUS < 1, reason="needs a GPU: torch sees none here")


@gpu
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_on_a_gpu_what_is_stored(lesson):
    status, printed = nbval(lesson)
    assert status == 0, printed[-6000:]


# what runs without a GPU: the test of lessons would see a lesson that differs

@pytest.mark.parametrize("stored, status", [("2\n", 0), ("3\n", 1)])
def test_a_lesson_that_prints_something_else_is_seen(tmp_path, stored, status):
    output = nbformat.v4.new_output("stream", name="stdout", text=stored)
    cell = nbformat.v4.new_code_cell("print(1 + 1)", outputs=[output], execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.write(notebook, tmp_path / "lesson.ipynb")
    found, printed = nbval(tmp_path / "lesson.ipynb", timeout=900)
    assert found == status, printed


def test_the_lessons_begin_with_the_first_and_none_is_left_out():
    numbers = [int(path.name[:2]) for path in LESSONS]
    assert numbers == list(range(len(LESSONS))) and len(LESSONS) > 20
