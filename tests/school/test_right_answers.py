"""Right answers in other styles pass: in a notebook as it is run there, and graded.

They stand in right/, under the name of their style; they try themselves in their own
cells, as learners do. Every fourth is tried, all with `--all-programs` (`make audits`).
"""

import importlib
from contextlib import nullcontext
from dataclasses import replace

import pytest

from manual_dp.school import checks
from manual_dp.school.checks import check
from manual_dp.school.exercise import find
from manual_dp.school.grader.worker import Worker, grade
from tests.conftest import programs
from tests.support.answers import ALL, READY, cells_of
from tests.support.notebook import answers_of

RIGHT = {f"{name}/{exercise}": cells for name in READY if name != "ps7"
         for exercise, cells in
         importlib.import_module(f"tests.support.right.{name}").ANSWERS.items()}
STYLES = [(name, style) for name, cells in RIGHT.items() for style in cells]


def pytest_generate_tests(metafunc):
    if "style" in metafunc.fixturenames:
        metafunc.parametrize("name, style", programs(metafunc.config, STYLES))


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


def test_a_right_answer_in_another_style_passes_in_a_notebook(
        name, style, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_time_limit", lambda *_: nullcontext())  # on any machine
    answers = answers_of(name, RIGHT[name][style])
    capsys.readouterr()
    check(name, *answers)
    assert f"{name}: right, on " in capsys.readouterr().out


def test_a_right_answer_in_another_style_gets_its_points(worker, name, style):
    exercise = replace(find(name), seconds=60)  # on any machine
    cells = {**cells_of(name.partition("/")[0]), exercise.cells[-1]: RIGHT[name][style]}
    assert grade(worker, exercise, cells) is None


def test_there_are_more_than_two_hundred_and_some_of_every_exercise():
    assert len(STYLES) > 200
    assert [name for name in ALL if name in RIGHT and len(RIGHT[name]) < 4] == []


BROKEN = "\n".join(f"def {name}(*args, **kwargs):\n    raise KeyError('mine')\n    yield"
                   for name in ("reduce_scatter", "allgather"))


@pytest.mark.parametrize("name, others", [
    ("ps1/train_batch", {"split_batch": "def split_batch(X, y, devices): 1 / 0",
                         "allreduce": "def allreduce(data): pass",
                         "sgd": "import os\nos._exit(3)"}),
    ("ps1/train_batch", {"allreduce": "while True: pass", "sgd": "x ="}),
    ("ps2/ring_allreduce", {"reduce_scatter": BROKEN, "allgather": BROKEN}),
    ("ps4/DDP", {"start_equal": "def start_equal(module): 1 / 0"}),
    ("ps6/sync_batch_norm", {"allreduce_sum": "class AllReduceSum: pass"})])
def test_the_answers_to_other_exercises_do_not_decide(worker, name, others):
    assert grade(worker, find(name), cells_of(name[:3]) | others) is None
    missing = {grade_id: source for grade_id, source in cells_of(name[:3]).items()
               if grade_id not in others}
    assert grade(worker, find(name), missing) is None


def test_a_helper_may_stand_in_another_exercises_cell(worker):
    cells = cells_of("ps1")
    cells["sgd"] += "\ndef share(number, rows):\n    return number / rows\n"
    cells["train_batch"] = cells["train_batch"].replace(
        "sum(l.item() for l in losses) / len(X)",
        "share(sum(l.item() for l in losses), len(X))")
    assert "share(" in cells["train_batch"]
    assert grade(worker, find("ps1/train_batch"), cells) is None


def test_a_part_of_its_own_in_the_answers_cell_counts(worker):
    cells = cells_of("ps1")
    own = "\ndef sgd(params, lr, batch_size):\n    pass\n"
    assert "nothing has moved" in grade(worker, find("ps1/train_batch"), {
        "train_batch": cells["train_batch"] + own})


def test_the_first_error_of_a_cell_is_told_where_the_answer_needs_it(worker):
    source = ("from manual_dp import no_such_thing as helper\n"
              "def allreduce(data):\n    helper(data)\n")
    message = grade(worker, find("ps1/allreduce"), {"allreduce": source})
    assert "ImportError" in message and "line 1 of <cell allreduce>" in message


def test_trying_out_for_too_long_costs_no_points(worker):
    right = cells_of("ps1")["allreduce"]
    endless = "\nwhile True:\n    pass\n"
    assert grade(worker, find("ps1/allreduce"), {"allreduce": right + endless}) is None
