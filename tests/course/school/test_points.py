"""course/school/points.py: how many points a learner's copy has, run in a kernel."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from course.school import points

EXERCISES = Path(__file__).parents[3] / "notebooks" / "exercises"
RIGHT = """def largest_difference(replicas):
    pairs = [zip(a, b) for a in replicas for b in replicas]
    return max((p - q).abs().max().item() for pair in pairs for p, q in pair)
"""


def grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


@pytest.fixture
def handed_out(tmp_path, monkeypatch):
    """Hand out set 1 with two exercises and its words; return the notebook."""
    nb = nbformat.read(EXERCISES / "release" / "ps1" / "ps1.ipynb", 4)
    first = next(cell for cell in nb.cells if cell.cell_type == "code")
    exercises = {"largest_difference", "split_by_counts"}
    names = {*exercises, *(f"check_{name}" for name in exercises), "words"}
    nb.cells = [cell for cell in nb.cells if cell is first or grade_id(cell) in names]
    place = tmp_path / "release" / "ps1"
    place.mkdir(parents=True)
    nbformat.write(nb, place / "ps1.ipynb")
    monkeypatch.setattr(points, "RELEASE", tmp_path / "release")
    return nb


def test_answers_are_run_as_they_are_graded_up_to_one_that_ends_the_kernel(
    handed_out, tmp_path
):
    # 6 s of a processor: only a kernel itself runs a notebook, and ends. The first
    # answer in two cells, between a cell of the learner's own and a check that was edited
    first, answer, check, ends, its_check, words = handed_out.cells
    top, *rest = RIGHT.splitlines(keepends=True)
    second = nbformat.from_dict({**answer, "id": "second", "source": "".join(rest)})
    answer.source = top
    check.source = "1 / 0"
    own = new_code_cell("raise ValueError")
    ends.source = "import os\ndef split_by_counts(*args):\n    os._exit(1)"
    handed_out.cells = [first, own, answer, second, check, ends, its_check, words]
    nbformat.write(handed_out, tmp_path / "ps1.ipynb")
    assert points.lines(points.points(tmp_path / "ps1.ipynb")) == [
        "largest_difference     2 of 2",
        "split_by_counts        - of 3   not run: an answer ends the kernel",
        "words                  - of 4   words are not graded here",
        "sum                    2 of 5   for code",
    ]


def test_an_answer_that_grading_refuses_is_not_run_and_it_is_told(handed_out, tmp_path):
    first, answer, check, other, its_check, words = handed_out.cells
    its_check.metadata.nbgrader.points = 0  # left out of its set: it has no row
    nbformat.write(handed_out, tmp_path / "release" / "ps1" / "ps1.ipynb")
    answer.source = f"import inspect\n{RIGHT}"
    handed_out.cells = [first, answer, check]
    nbformat.write(handed_out, tmp_path / "ps1.ipynb")
    row, of_the_words = points.points(tmp_path / "ps1.ipynb")
    assert of_the_words[0] == "words"
    name, earned, most, why = row
    assert (name, earned, most) == ("largest_difference", 0, 2)
    assert why.startswith("not graded: it imports inspect, ")


@pytest.mark.parametrize(
    "outputs, row",
    [
        ([("stream", {"text": "ps1/sgd: right"})], (2, "")),
        (
            [("error", {"ename": "Wrong", "evalue": "ps1/sgd is not written yet: x"})],
            (0, "not written yet"),
        ),
        (
            [("error", {"ename": "Wrong", "evalue": "ps1/sgd is not right yet.\nx"})],
            (0, "not right yet"),
        ),
        (
            [("error", {"ename": "Wrong", "evalue": "ps1/sgd ...\nperhaps uphill"})],
            (0, "uphill"),
        ),
        (
            [
                (
                    "error",
                    {
                        "ename": "Wrong",
                        "evalue": "ps1/sgd is not checked to the end.\nThe machine is busy",
                    },
                )
            ],
            (None, "not checked to the end"),
        ),
        (
            [("error", {"ename": "NameError", "evalue": "no sgd\nfar away"})],
            (0, "NameError: no sgd"),
        ),
        (
            [
                ("stream", {"text": "ps1/sgd is right in parts.\nperhaps no mean\n"}),
                ("execute_result", {"data": {"text/plain": "1.5"}}),
            ],
            (1.5, "no mean"),
        ),
    ],
)
def test_a_row_has_the_points_and_the_line_that_helps(outputs, row):
    cell = new_code_cell(
        "check()", outputs=[new_output(kind, **what) for kind, what in outputs]
    )
    cell.metadata["nbgrader"] = {"grade_id": "check_sgd", "points": 2, "grade": True}
    earned, why = row
    assert points._row(nbformat.from_dict(cell), "") == ("sgd", earned, 2, why)


def test_a_set_is_found_by_its_name_or_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(points, "HERE", tmp_path)
    with pytest.raises(ValueError, match=r"there is no ps1\.ipynb and no .*build/lab"):
        points.find("ps1")
    for folder in "notebooks/exercises/release", "build/lab/exercises/release":
        place = tmp_path / folder / "ps1"
        place.mkdir(parents=True)
        (place / "ps1.ipynb").touch()
        assert points.find("ps1") == place / "ps1.ipynb"  # the lab's before the other
    (tmp_path / "ps1.ipynb").touch()
    assert points.find("ps1") == Path("ps1.ipynb")
    assert points.find("ps1.ipynb") == Path("ps1.ipynb")


def test_a_notebook_that_is_no_set_is_refused(tmp_path):
    nb = nbformat.v4.new_notebook(cells=[new_code_cell("print(1)")])
    nbformat.write(nb, tmp_path / "mine.ipynb")
    with pytest.raises(ValueError, match="has no answer cell of a problem set"):
        points.points(tmp_path / "mine.ipynb")
