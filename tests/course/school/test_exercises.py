"""Every exercise: right answers pass, and so on whatever an answer does to its inputs.

Answers stand in wrong/ and right/; test_hints.py has the wrong ones.
"""

import os
import subprocess
import sys

import pytest
import torch

from course.school import checks, ranks
from course.school.checks import Wrong, check, find
from manual_dp.ranks import RankError
from tests.course.school.right import changed
from tests.course.school.wrong import filled
from tests.support.school import (
    NAMES,
    RIGHT,
    SETS,
    STYLES,
    TEMPLATES,
    WRONG,
    define,
    in_notebook,
    no_limit,  # noqa: F401, a fixture
    points,
    solution,
    soon,
    told,
)

OF_SETS = [name for name in NAMES if name.partition("/")[0] in checks.SETS]


@pytest.mark.parametrize("name", OF_SETS)
def test_a_solution_passes_each_time(name, capsys):
    check(name, *solution(name), times=2)
    assert capsys.readouterr().out == f"{name}: right, on inputs drawn at random\n"


@pytest.mark.parametrize(
    "name, style", [(name, style) for name, cells in RIGHT.items() for style in cells]
)
def test_a_right_answer_in_another_style_passes(name, style):
    assert told(name, in_notebook(name, RIGHT[name][style]), seed=1) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_answer_is_told_so(name, capsys):
    blank = define(
        name,
        "".join(
            f"class {asked}:\n    def __init__(*_, **__):\n"
            "        raise NotImplementedError()\n    apply = __init__\n"
            for asked in find(name).answers
        ),
    )
    if name in OF_SETS:
        with pytest.raises(Wrong, match=f"{name} is not written yet"):
            check(name, *blank)
    else:
        check(name, *blank)
        assert f"{name}: not written yet" in capsys.readouterr().out


def turn(tensor):
    """Change the sign of a tensor, in place."""
    tensor.data.mul_(-0.5)


def stop(tensor):
    raise KeyError("a tensor")


def first(touch, answer):
    """Return the answer behind a wrapper that touches the fractions it is handed."""

    def meet(value):
        if isinstance(value, (list, tuple)):
            for part in value:
                meet(part)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            touch(value)

    def vandal(*args, **kwargs):
        meet([*args, *kwargs.values()])
        return answer(*args, **kwargs)

    return vandal


@pytest.mark.parametrize("name", OF_SETS)
def test_an_answer_that_changes_its_inputs_does_not_change_what_is_right(
    name, monkeypatch
):
    # only spoiled inputs show whether a check draws its truth from what it hands over;
    # they may also let ranks wait for one another
    answers = solution(name)
    with monkeypatch.context() as patched:
        patched.setattr(ranks, "run_ranks", soon)
        try:
            if check(name, *(first(turn, answer) for answer in answers)):
                return  # it is right in parts
        except (Wrong, RankError, ArithmeticError, ValueError):
            return
    # else it is handed none
    assert check(name, *(first(stop, answer) for answer in answers)) is None


@pytest.mark.parametrize("odd", [None, []], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_returns_something_odd_is_told_what_it_gave(name, odd):
    with pytest.raises((Wrong, RankError)) as caught:
        check(name, *([lambda *args, **kwargs: odd] * len(find(name).answers)))
    if isinstance(caught.value, Wrong):
        lines = str(caught.value).splitlines()
        assert lines[0] == f"{name} is not right yet."
        assert [line[:8].strip() for line in lines[1:]][-4:] in (
            ["given", "got", "wanted", "perhaps"],
            ["given", "got", "wanted"],
            ["got", "wanted"],
        )


@pytest.mark.parametrize("problem_set", SETS)
def test_the_notebook_and_the_set_name_the_same_exercises_and_points(problem_set):
    assert points(problem_set) == {
        name: find(name).points
        for name in OF_SETS
        if name.startswith(f"{problem_set}/")
    }


def test_every_exercise_has_wrong_answers_and_right_ones_in_two_styles():
    runs = {name: find(name).run for name in NAMES}
    again = [
        name
        for name, run in runs.items()
        if name not in OF_SETS
        and (
            run.__module__.rpartition(".")[2] in SETS
            or run in [runs[other] for other in OF_SETS]
        )
    ]
    own = [name for name in NAMES if name not in again]  # else a set has it as well
    assert [name for name in own if len(WRONG.get(name, {})) < 3] == []
    assert [name for name in own if len(RIGHT.get(name, {})) < 3] == []
    assert set(STYLES) <= set(TEMPLATES) <= set(NAMES)


FIRST = """
import sys
from course.school.checks import check
from tests.support.school import RIGHT, define
for name in "dataparallel/forward", "train/evaluate_accuracy":
    check(name, *define(name, RIGHT[name]["what wrong ones are made of"]))
    assert "torch._dynamo" not in sys.modules, name
"""


def test_the_first_check_does_not_wait_for_an_import_of_torchs_compiler():
    # 5 s: only a Python that has done nothing else has not imported it yet
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", FIRST], env=path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


# the tables

CELL = "<<BEFORE: pass>>; <<RATE: lr / <<WHOLE: n>>>>; WHOLE"


@pytest.mark.parametrize(
    "cell, changes, message",
    [
        (
            CELL,
            {"AFTER": "pass"},
            "ps9/fit: .* no place AFTER, it has BEFORE, RATE, WHOLE",
        ),
        (CELL + "<<RATE: lr>>", {}, "ps9/fit: two places are called RATE"),
    ],
)
def test_a_place_that_is_nowhere_or_twice_is_refused(cell, changes, message):
    with pytest.raises(ValueError, match=message):
        filled("ps9/fit", cell, changes)


def test_a_style_that_changes_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="ps9/fit: no 'gamma'"):
        changed("ps9/fit", ("gamma", "beta"))
