"""Every exercise: its solution passes, its stub and its named wrong answers do not.

A wrong answer stands in wrong/, under its name. It is tried as a learner would hand it
in: in place of the solution, among the solutions of the other cells.
"""

import importlib
import inspect
import json
import re
from contextlib import nullcontext
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest

from manual_dp.school import checks
from manual_dp.school.checks import Wrong, check
from manual_dp.school.exercise import exercises
from tests.support.answers import (
    ALL,
    EXERCISES,
    HINTS,
    READY,
    WRONG,
    cells_of,
    define,
)
from tests.support.wrong import begins

NO_ANSWER = r"\1# YOUR CODE HERE\n\1raise NotImplementedError()"
DRAWS = {"ps1": 2, "ps2": 5, "ps3": 2}  # of the others, ranks take their time
SOLUTION = r"( *)### BEGIN SOLUTION\n.*?### END SOLUTION"


@pytest.mark.parametrize("name", ALL)
def test_a_solution_passes_on_as_many_inputs_each_time(name, capsys):
    for _ in range(3):
        check(name, *define(name))
    once, *again = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{name}: right, on \d+ (random inputs|programs)", once)
    assert again == [once] * 2  # the count stands in stored outputs


@pytest.mark.parametrize("name", ALL)
def test_a_blank_answer_is_told_so(name):
    cells = cells_of(name.partition("/")[0])
    blank = {grade_id: re.sub(SOLUTION, NO_ANSWER, source, flags=re.S)
             for grade_id, source in cells.items()}
    with pytest.raises(Wrong, match=f"{name} is not written yet"):
        check(name, *define(name, blank))


@pytest.mark.parametrize("name, mistake", [
    (name, mistake) for name, wrong in WRONG.items() for mistake in wrong])
def test_a_wrong_answer_is_rejected_with_its_numbers_and_its_hint(
        name, mistake, monkeypatch):
    monkeypatch.setattr(checks, "_time_limit", lambda *_: nullcontext())  # on any machine
    answers = define(name, {name.partition("/")[2]: WRONG[name][mistake]})
    for seed in range(DRAWS.get(name[:3], 1)):
        monkeypatch.setattr(checks, "random", SimpleNamespace(Random=partial(Random, seed)))
        with pytest.raises(Wrong) as caught:
            check(name, *answers)
        lines = str(caught.value).splitlines()
        assert lines[0] == f"{name} is not right yet."
        assert [line[:8].strip() for line in lines[1:4]] == ["given", "got", "wanted"]
        assert begins(str(caught.value).partition("\nperhaps ")[2], HINTS[name][mistake])


def test_an_allreduce_that_slices_cannot_take_a_tensor_without_dimensions():
    book = define("ps1/allreduce", {"allreduce": """
def allreduce(data):
    for tensor in data[1:]:
        data[0][:] += tensor
    for tensor in data[1:]:
        tensor[:] = data[0]
"""})
    with pytest.raises(IndexError, match="0-dim tensor"):
        check("ps1/allreduce", *book)


@pytest.mark.parametrize("hint, wanted, same", [
    ("", None, True), ("a b", None, False), ("a b", "a", True), ("", "a", False),
    ("a b", {"c", "a"}, True), ("", {"a", None}, True), ("b", {"a", None}, False)])
def test_a_hint_is_known_by_how_it_begins(hint, wanted, same):
    assert begins(hint, wanted) is same


def test_nearly_every_wrong_answer_has_a_hint():
    without = [(name, mistake) for name, hints in HINTS.items()
               for mistake, hint in hints.items() if hint is None]
    assert len(without) <= 3, without


def test_every_exercise_has_wrong_answers_and_some_six_of_them():
    few = {name for name in ALL if len(WRONG.get(name, {})) < 2 + 4 * (
        name[:3] in ("ps1", "ps2", "ps4", "ps8"))}
    assert few == set() and set(WRONG) <= set(ALL)
    assert sum(map(len, WRONG.values())) >= 60 or len(READY) < 6


@pytest.mark.parametrize("problem_set", READY)
def test_the_notebook_and_the_module_name_the_same_exercises(problem_set):
    path = EXERCISES / "source" / problem_set / f"{problem_set}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    metas = [cell["metadata"]["nbgrader"] for cell in cells]
    points = {f"{problem_set}/{meta['grade_id'].removeprefix('check_')}": meta["points"]
              for meta in metas if meta["grade"] and not meta["solution"]}
    assert points == {name: exercise.points
                      for name, exercise in exercises(problem_set).items()}
    known = {meta["grade_id"] for meta in metas if meta["solution"]}
    assert all(set(exercise.cells) <= known
               for exercise in exercises(problem_set).values())


@pytest.mark.parametrize("name", ALL)
def test_the_file_that_runs_an_answer_names_its_arguments(name):
    given = importlib.import_module(f"manual_dp.school.{name.partition('/')[0]}.run")
    function = getattr(given, name.partition("/")[2])
    answers = exercises(name.partition("/")[0])[name].answers
    named = tuple(inspect.signature(function).parameters)[1:]
    assert named == answers or len(answers) == 1 and named == ("answer",)
