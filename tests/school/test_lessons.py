"""What learners write in a lesson: right in any style, wrong with a hint, or blank.

A right answer is, first of all, the function that the lesson shows next.
"""

import importlib
import linecache
from contextlib import nullcontext
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import manual_dp
from manual_dp import ranks
from manual_dp.parallel import gather, parallel_apply, replicate
from manual_dp.school import checks
from manual_dp.school.checks import Wrong, check
from manual_dp.school.exercise import LESSONS, SETS, exercises, find
from manual_dp.school.lessons import messages
from tests.support.right import lessons as right
from tests.support.right import ranks as right_on_ranks
from tests.support.wrong import begins
from tests.support.wrong import lessons as wrong
from tests.support.wrong import ranks as wrong_on_ranks

RIGHT = right.ANSWERS | right_on_ranks.ANSWERS
WRONG = wrong.ANSWERS | wrong_on_ranks.ANSWERS
ALL = [name for lesson in LESSONS for name in exercises(lesson)]
FILES = ("params", "allreduce", "split", "train", "lab.scaling.laws", "lab.zero",
         "lab.trainer.rows")
WITHOUT_A_PAGE = {  # none of this name
    "06/learning_rate", "07/forward", "16/seconds", *right_on_ranks.ANSWERS}


def shown(name):
    """Return the module's function of this name."""
    (function,) = find(name).answers
    return next(vars(module)[function] for module in
                (importlib.import_module(f"manual_dp.{file}") for file in FILES)
                if function in vars(module))


def define(name, cell):
    """Return the functions that a cell defines, among those of the module."""
    space = {"torch": torch, "dist": dist, "nn": nn, "F": F,
             **{word: getattr(module, word) for module in (ranks, manual_dp)
                for word in module.__all__},
             **{part.__name__: part for part in (replicate, parallel_apply, gather)}}
    file = f"<cell {name} {abs(hash(cell))}>"
    linecache.cache[file] = len(cell), None, cell.splitlines(True), file
    exec(compile(cell, file, "exec"), space)
    return [space[function] for function in find(name).answers]


def raising(name, error):
    """Return a cell in which every function raises `error`."""
    return "".join(f"def {function}(*args):\n    raise {error}\n"
                   for function in find(name).answers)


def test_lessons_have_at_least_eight_exercises_and_none_is_graded():
    assert len(ALL) >= 8 and {find(name).points for name in ALL} == {0}
    assert not set(LESSONS) & set(SETS)


@pytest.mark.parametrize("name", [name for name in ALL if name not in WITHOUT_A_PAGE])
def test_the_function_that_the_lesson_shows_is_a_right_answer(name, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_time_limit", lambda *_: nullcontext())  # on any machine
    check(name, shown(name))
    assert capsys.readouterr().out.startswith(f"{name}: right, on ")


@pytest.mark.parametrize("name, style", [
    (name, style) for name, cells in RIGHT.items() for style in cells])
def test_a_right_answer_in_another_style_is_accepted(name, style, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_time_limit", lambda *_: nullcontext())  # on any machine
    check(name, *define(name, RIGHT[name][style]), times=2)
    assert capsys.readouterr().out.startswith(f"{name}: right, on ")


@pytest.mark.parametrize("name, mistake", [
    (name, mistake) for name, cells in WRONG.items() for mistake in cells])
def test_a_wrong_answer_is_rejected_with_its_hint(name, mistake, monkeypatch):
    monkeypatch.setattr(checks, "_time_limit", lambda *_: nullcontext())  # on any machine
    monkeypatch.setattr(checks, "random", SimpleNamespace(Random=partial(Random, 0)))
    hint, cell = WRONG[name][mistake]
    if "wait" in (hint or "") or hint == wrong_on_ranks.NOT_ALL:  # so not for long
        monkeypatch.setattr(messages, "SECONDS", 4)
    with pytest.raises(Wrong) as caught:
        check(name, *define(name, cell))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{name} is not right yet."
    assert [line[:8].strip() for line in lines[1:4]] == ["given", "got", "wanted"]
    assert begins(str(caught.value).partition("\nperhaps ")[2], hint)


def test_every_exercise_has_six_wrong_answers_and_three_right_ones():
    assert set(RIGHT) == set(WRONG) == set(ALL)
    assert not set(right.ANSWERS) & set(right_on_ranks.ANSWERS)
    assert all(len(RIGHT[name]) >= 3 and len(WRONG[name]) >= 6 for name in ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_blank_answer_prints_one_line_and_the_lesson_goes_on(name, capsys):
    check(name, *define(name, raising(name, "NotImplementedError")))
    assert capsys.readouterr().out == (
        f"{name}: not written yet. Write your lines in place of the one with "
        "NotImplementedError, then run this cell again.\n")


@pytest.mark.parametrize("name", ALL)
def test_an_answer_that_raises_shows_its_own_error(name):
    with pytest.raises((KeyError, Wrong), match="KeyError: 'mine'|^'mine'$"):
        check(name, *define(name, raising(name, "KeyError('mine')")))


@pytest.mark.parametrize("name, message", [
    ("03/fly", "no exercise is called '03/fly'; there are 03/allreduce, "),
    ("03/get_params", "no exercise is called '03/get_params'"),
    ("11/allreduce", "no problem set is called '11'")])
def test_an_unknown_exercise_of_a_lesson_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        check(name, len)


@pytest.mark.parametrize("what", [None, 3, [], ["x", 3], [[3]], [["x"], 4], {"a": 1}])
@pytest.mark.parametrize("name", ["03/reduce_scatter", "03/allgather"])
def test_whatever_is_left_in_the_list_or_returned_is_told_to_be_wrong(name, what):
    def strange(chunks):
        chunks[:] = what if isinstance(what, list) else []
        return what
    with pytest.raises(Wrong, match="perhaps the tensors hold what they held"):
        check(name, strange)
