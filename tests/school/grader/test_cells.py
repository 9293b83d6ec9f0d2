"""The marks of nbgrader: cells that were split, copied, edited."""

import ast
import copy
import json
import re

import pytest

from manual_dp.school.exercise import exercises, find
from manual_dp.school.grader.cells import checksum, edited, join, source, together
from manual_dp.school.grader.submission import read
from manual_dp.school.grader.worker import grade
from tests.support.answers import EXERCISES, READY, cells_of
from tests.support.wrong.ps1 import WRONG


def handed_out(name):
    return json.loads((EXERCISES / "release" / name / f"{name}.ipynb").read_text())


def marked(notebook, grade_id):
    [cell] = [cell for cell in notebook["cells"]
              if cell["metadata"]["nbgrader"]["grade_id"] == grade_id]
    return cell


def answered(name, **changes):
    """Return what was handed out, with the solutions, or `changes`, in its cells.

    changes: {grade id: texts}, a cell for each text, with copies of the mark.
    """
    notebook = handed_out(name)
    for grade_id, texts in ({i: [text] for i, text in cells_of(name).items()}
                            | changes).items():
        cell = marked(notebook, grade_id)
        place = notebook["cells"].index(cell)
        notebook["cells"][place:place + 1] = [
            {**copy.deepcopy(cell), "id": f"{cell['id']}-{i}",
             "source": cell["source"] if text is None else text}
            for i, text in enumerate(texts)]
    return notebook


def code_of(tmp_path, notebook):
    path = tmp_path / "ps1.ipynb"
    path.write_text(json.dumps(notebook))
    return read(path)["code"]


def halves(text, line):
    """Return the two texts that JupyterLab makes of one, split before a line."""
    lines = text.splitlines(keepends=True)
    return ["".join(part).strip("\n") for part in (lines[:line], lines[line:])]


# split

@pytest.mark.parametrize("name", READY)
def test_a_cell_that_was_split_anywhere_is_the_cell_again(tmp_path, name):
    for grade_id, text in cells_of(name).items():
        whole = ast.dump(ast.parse(re.sub("^%.*", "", text, flags=re.M)))
        for line in range(1, len(text.splitlines())):
            cells = [{**marked(handed_out(name), grade_id), "source": part}
                     for part in halves(text, line)]
            [joined] = join(cells)
            joined = re.sub("^%.*", "", source(joined), flags=re.M)
            assert ast.dump(ast.parse(joined)) == whole, (grade_id, line)


@pytest.mark.parametrize("name", READY)
def test_every_cell_split_at_once_is_graded_right(tmp_path, worker, name):
    split = {grade_id: halves(text, len(text.splitlines()) // 2)
             for grade_id, text in cells_of(name).items()}
    code = code_of(tmp_path, answered(name, **split))
    graded = {one: grade(worker, find(one), code) for one in exercises(name)}
    assert graded == dict.fromkeys(exercises(name))


def test_old_attempts_above_the_answer_cost_nothing(tmp_path, worker):
    old = WRONG["get_params"]
    code = code_of(tmp_path, answered("ps1", get_params=[
        old["wants no gradient"], old["rounded to float32"], cells_of("ps1")["get_params"]]))
    assert grade(worker, find("ps1/get_params"), code) is None


HALF_WRITTEN = "def sgd(params, lr, batch_size):\n    for p in params"
RIGHT = cells_of("ps1")["sgd"].strip("\n")


@pytest.mark.parametrize("parts, gone", [
    ([HALF_WRITTEN, RIGHT], [1]), ([RIGHT, HALF_WRITTEN], [2]),
    ([HALF_WRITTEN, HALF_WRITTEN, RIGHT, "x ="], [1, 2, 4]),
    ([HALF_WRITTEN, *halves(RIGHT, 2)], [1]), ([*halves(RIGHT, 2), "print(sgd"], [3]),
    (["!ls\nx = 1", "def broken(:", RIGHT], [2])])
def test_an_old_attempt_that_is_not_python_costs_nothing(tmp_path, worker, parts, gone):
    code = code_of(tmp_path, answered("ps1", sgd=parts))
    assert grade(worker, find("ps1/sgd"), code) is None
    assert re.findall(r"# cell (\d) of (\d) of this answer is left out", code["sgd"]) == [
        (str(place), str(len(parts))) for place in gone]


@pytest.mark.parametrize("parts", [
    [HALF_WRITTEN], [HALF_WRITTEN, "x ="], halves(RIGHT, 2), ["%matplotlib inline", "!ls"],
    [HALF_WRITTEN, "x" * 20_000 + " = 1"], [HALF_WRITTEN] + ["x = 1"] * 12])
def test_otherwise_every_part_is_kept(parts):
    assert together(parts) == "\n".join(parts)


def test_without_a_part_that_is_python_the_answer_is_told_its_first_error(
        tmp_path, worker):
    code = code_of(tmp_path, answered("ps1", sgd=[HALF_WRITTEN, "x ="]))
    message = grade(worker, find("ps1/sgd"), code)
    assert "<cell sgd>" in message and "SyntaxError" in message


@pytest.mark.parametrize("text", ["(" * 19_000, "1" + "+1" * 9_000, "-" * 19_000 + "1",
                                  "\0", "\ud800", "a" + ".b" * 9_000])
def test_a_part_that_no_parser_likes_is_left_out_or_kept(text):
    assert RIGHT in together([text, RIGHT])


def test_a_wrong_answer_below_the_right_one_is_what_counts(tmp_path, worker):
    code = code_of(tmp_path, answered("ps1", get_params=[
        cells_of("ps1")["get_params"], WRONG["get_params"]["wants no gradient"]]))
    assert "requires_grad_() is missing" in grade(worker, find("ps1/get_params"), code)


@pytest.mark.parametrize("order", [["mine", None], [None, "mine"], [None, "mine", None]])
def test_a_copy_that_nobody_wrote_into_is_left_out(tmp_path, order):
    assert code_of(tmp_path, answered("ps1", sgd=order))["sgd"] == "mine"


def test_copies_that_nobody_wrote_into_are_one(tmp_path):
    code = code_of(tmp_path, answered("ps1", sgd=[None, None]))
    assert code["sgd"] == source(marked(handed_out("ps1"), "sgd"))


def test_the_joined_cell_stands_where_the_first_stood():
    notebook = answered("ps1", sgd=["a", "b"])
    ids = [cell["id"] for cell in join(notebook["cells"])]
    assert ids.index("sgd-0") == ids.index("sgd-task") + 1
    assert len(ids) == len(handed_out("ps1")["cells"])


def test_cells_of_other_kinds_are_not_joined():
    words = {"cell_type": "markdown", "source": "w", "metadata": {
        "nbgrader": {"grade_id": "sgd", "solution": True}}}
    code = {**copy.deepcopy(words), "cell_type": "code", "source": "c"}
    check = {**copy.deepcopy(code), "metadata": {
        "nbgrader": {"grade_id": "sgd", "solution": False, "grade": True}}}
    plain = {**copy.deepcopy(code), "metadata": {}}
    assert [source(cell) for cell in join([words, code, check, check, plain, plain])] == [
        "w", "c", "c", "c", "c", "c"]


@pytest.mark.parametrize("odd", [None, 7, "cell", [], {}, {"metadata": []},
                                 {"metadata": {"nbgrader": []}}])
def test_what_is_no_cell_stays_where_it_is(odd):
    assert join([odd, odd]) == [odd, odd] and not edited(odd)


# edited

@pytest.mark.parametrize("name", READY)
def test_the_checksum_is_nbgraders(name):
    for cell in handed_out(name)["cells"]:
        assert checksum(cell) == cell["metadata"]["nbgrader"]["checksum"]
        assert not edited(cell)


def test_a_check_that_was_edited_is_told_and_an_answer_never_is(tmp_path):
    notebook = answered("ps1")
    marked(notebook, "check_sgd")["source"] = "print('right')"
    marked(notebook, "title")["source"] += "\n"
    path = tmp_path / "ps1.ipynb"
    path.write_text(json.dumps(notebook))
    assert read(path)["edited"] == ["title", "check_sgd"]


@pytest.mark.parametrize("points", [None, "two", [], {}, True, 10**400, float("nan"),
                                    json.loads("[" * 900 + "]" * 900)], ids=range(8))
def test_odd_points_of_a_check_break_nothing(points):
    cell = marked(handed_out("ps1"), "check_sgd")
    cell["metadata"]["nbgrader"]["points"] = points
    assert edited(cell)


def test_a_lone_surrogate_in_a_locked_cell_breaks_nothing():
    cell = marked(handed_out("ps1"), "title")
    cell["source"] = "\ud800"
    assert edited(cell)
