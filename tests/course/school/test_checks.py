"""The check in a notebook: what it prints, raises, interrupts, and never lets pass."""

import functools
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

import manual_dp
from course.school import answers, checks
from course.school.checks import Partly, Wrong, about, check, exercise, find
from course.school.draws import rand
from manual_dp.ranks import RankError
from tests.support.school import define

SGD = """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad / batch_size
            p.grad.zero_()
"""


def sgd(cell=SGD):
    return define("ps1/sgd", cell)[0]


def judge(random, sgd):
    """Take four steps on a parameter that holds a gradient."""
    for size in random.sample(range(2, 50), 4):
        p, lr = rand(random, 3).requires_grad_(), random.uniform(0.1, 1)
        old, p.grad = p.detach().clone(), rand(random, 3)
        grad = p.grad.clone()
        sgd([p], lr, size)
        yield about(f"lr {lr}, batch_size {size}")(
            "p", p, old - lr * grad / size, {"nothing has changed": old}
        )


def fails(name, *answers):
    """Return the message of a check that rejects."""
    with pytest.raises(Wrong) as caught:
        check(name, *answers)
    return str(caught.value)


LIMIT = checks.limit


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """Let a check take its time on a busy machine; let a set ask what lessons ask."""
    monkeypatch.setattr(checks, "limit", nullcontext)
    monkeypatch.setattr(checks, "EXERCISES", dict(checks.EXERCISES))
    exercise("one_step/sgd", "ps1/sgd", points=2)(judge)
    exercise("ps1/split_batch", points=2)(find("split_the_batch/split_batch").run)


def made(run, **more):
    """Make an exercise of a set, for one test; return its name."""
    exercise("ps1/made", **more)(run)
    return "ps1/made"


def lines(message):
    return [line[:8].strip() for line in message.splitlines()[1:]]


# what a check says


def test_a_right_answer_prints_one_line(capsys):
    assert check("ps1/sgd", sgd()) is None
    assert capsys.readouterr() == ("ps1/sgd: right, on inputs drawn at random\n", "")


def test_an_answer_that_is_right_in_parts_returns_its_points(capsys):
    name = made(lambda random, a: iter([Partly("got     a half", 2.5)]), points=4)
    assert check(name, len) == 2.5
    assert capsys.readouterr().out == "ps1/made is right in parts.\ngot     a half\n"
    made(lambda random, a: iter([Partly("got     nothing", 0)]), points=4)
    assert fails(name, len) == "ps1/made is not right yet.\ngot     nothing"


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("write me"),
        RankError("rank 1 raised", kind="raised", cause="NotImplementedError"),
    ],
)
def test_a_blank_answer_is_told_so_and_a_lesson_goes_on(error, capsys):
    def blank(*_):
        raise error

    assert fails("ps1/sgd", blank) == (
        "ps1/sgd is not written yet: its cell still raises NotImplementedError."
    )
    assert check("one_step/sgd", blank) is None
    assert capsys.readouterr().out == (
        "one_step/sgd: not written yet. Write it, then run this cell.\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        KeyError("mine"),
        RankError("it said NotImplementedError", cause="OSError"),
    ],
)
def test_what_an_answer_raises_itself_is_passed_on(error):
    def broken(*_):
        raise error

    with pytest.raises(type(error)) as caught:
        check("ps1/sgd", broken)
    assert caught.value is error


def test_the_frames_of_an_error_begin_in_the_learners_cell():
    with pytest.raises(ZeroDivisionError) as caught:
        check(
            "ps1/clipped_sgd",
            *define("ps1/clipped_sgd", "def clipped_sgd(*args): 1 / 0"),
        )
    names = [entry.frame.code.name for entry in caught.traceback]
    assert names.count("clipped_sgd") == 1 and names[-1] == "clipped_sgd"


def test_an_error_of_an_answer_says_what_the_answer_was_given():
    cell = "def clipped_sgd(params, lr, batch_size, max_norm): params[9]"
    with pytest.raises(IndexError, match="out of range") as caught:
        check("ps1/clipped_sgd", *define("ps1/clipped_sgd", cell))
    (note,) = caught.value.__notes__
    params, lr, _, max_norm = note.split("; ")
    assert params.startswith("given   params: list of ")
    assert params.count("tensor of shape (") == 2
    assert 0 < float(lr.removeprefix("lr: ")) < float("inf")
    assert max_norm.startswith("max_norm: ")


def test_the_frames_of_an_error_end_where_the_course_begins():
    cell = "def made(given):\n    given()\n"
    mine = define("ps1/clipped_sgd", cell + "clipped_sgd = made")[0]
    given = define("ps1/clipped_sgd", "def clipped_sgd(): 1 / 0")[0]
    code = given.__code__.replace(co_filename=checks.__file__)  # as if of the course
    given = type(given)(code, {})

    def run(random, answer):
        yield answer(given)

    with pytest.raises(ZeroDivisionError) as caught:
        check(made(run), mine)
    assert caught.traceback[-1].frame.code.name == "made"


def test_what_the_judge_cannot_work_with_is_told_in_its_words():
    message = fails("ps1/split_batch", 3)
    assert lines(message) == ["got", "wanted"]
    assert message.endswith("an answer that takes and returns what the exercise says")


@pytest.mark.parametrize(
    "name, given, message",
    [
        ("ps1/sgd", [], r"ps1/sgd checks sgd; got 0 arguments"),
        ("ps1/sgd", [len] * 2, r"ps1/sgd checks sgd; got 2 arguments"),
        (
            "ps1/fly",
            [len],
            r"no exercise is called 'ps1/fly'; there are ps1/largest_difference, ",
        ),
        ("ps99/sgd", [len], r"no exercise is called 'ps99/sgd'; there are \w+/\w+, "),
    ],
)
def test_a_check_that_is_called_wrongly_says_how(name, given, message):
    with pytest.raises(ValueError, match=message):
        check(name, *given)


def test_an_exercise_of_a_lesson_has_the_lessons_name_and_no_points():
    assert find("one_step/sgd") is not find("ps1/sgd")
    assert find("one_step/sgd").run is find("ps1/sgd").run
    assert (find("one_step/sgd").points, find("ps1/sgd").points) == (0, 2)


def test_an_exercise_is_asked_once_a_case_with_the_values_behind_the_star():
    seen = []

    def run(random, a, b_, *, k, n=None):
        seen.append((k, n))
        yield None

    name = made(run, cases=[(3, 1), 5])
    assert find(name).answers == ("a", "b")
    check(name, len, max)
    assert seen == [(3, 1), (5, None)]


def test_an_exercise_that_compares_nothing_is_no_exercise():
    with pytest.raises(ValueError, match="the exercise ps1/made compares nothing"):
        check(made(lambda random, a: iter([])), len)


def test_a_check_draws_other_inputs_each_time():
    seen, right = [], sgd()

    def look(params, lr, batch_size):
        seen.append((lr, batch_size, *(p.sum().item() for p in params)))
        right(params, lr, batch_size)

    check("ps1/sgd", look, times=2)
    check("ps1/sgd", look)
    assert len(seen) == 12 == len(set(seen))
    for _ in range(2):
        check("ps1/sgd", look, draws=random.Random(0))
    assert seen[12:16] == seen[16:]


def test_a_notebook_shows_the_message_and_no_frames(tmp_path):
    # a new Python: only IPython itself shows what it prints of an error
    script = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from course import check")
shell.run_cell("check('allreduce/allreduce', lambda data: None)")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        timeout=100,
    )
    assert (
        done.stdout.startswith("allreduce/allreduce is not right yet.\n")
        and not done.stderr
    )
    assert lines(done.stdout.strip()) == ["given", "got", "wanted", "perhaps"]


# whose is it?


@pytest.mark.parametrize(
    "answer, module",
    [
        (functools.partial(manual_dp.sgd), "manual_dp.train"),
        (check, "course.school.checks"),
    ],
)
def test_the_courses_own_function_is_no_answer(answer, module):
    assert fails("ps1/sgd", answer) == (
        f"ps1/sgd is not checked.\nsgd is the course's own, from {module}: write yours, "
        "in the cell of the exercise."
    )


HELPED = SGD.replace("lr * p.grad / batch_size", "share(lr * p.grad, batch_size)")
SHARE = "def share(total, rows):\n    return total / rows\n"


@pytest.mark.parametrize(
    "cells, named",
    [
        ([SHARE + HELPED], None),
        ([SHARE.replace("share", "zero_"), SGD], None),  # a method is no helper
        (
            [
                SHARE,
                "def twice(a, b):\n    return share(a, b)\n"
                + HELPED.replace("share", "twice"),
            ],
            "share",
        ),
        (
            [
                SHARE.replace("share", "split_batch"),
                HELPED.replace("share", "split_batch"),
            ],
            None,
        ),
    ],
)
def test_a_helper_in_another_cell_is_told(cells, named, capsys):
    check("one_step/sgd", *define("ps1/sgd", *cells))  # a lesson does not ask
    assert "Note" not in capsys.readouterr().out
    check("ps1/sgd", *define("ps1/sgd", *cells))
    note = capsys.readouterr().out.partition("at random\n")[2]
    assert note == (
        ""
        if named is None
        else "Note: it uses share from another cell. Move "
        "that into the cell of the answer, which is what is graded.\n"
    )


IMPORTED = "from manual_dp import train" + SGD


def test_an_answer_that_grading_would_refuse_is_told_why(capsys):
    check("one_step/sgd", *define("ps1/sgd", IMPORTED))  # a lesson gives no points
    assert "Note" not in capsys.readouterr().out
    check("ps1/sgd", *define("ps1/sgd", IMPORTED))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Note: it will get no points, since it imports more of manual_dp than the first "
        "cell does, and an answer is your own."
    ]


# what an answer leaves behind


def test_a_setting_that_is_left_changed_is_told_and_put_back():
    before = checks.settings()
    changed = SGD + "    torch.set_default_dtype(torch.float64)\n"
    assert "perhaps the default dtype stays changed" in fails("ps1/sgd", sgd(changed))
    assert checks.settings() == before


def test_a_setting_that_made_the_judge_stumble_is_told():
    def stumble(random, answer):
        answer()
        torch.ones(1, requires_grad=True).sum().backward()
        yield None

    message = fails(made(stumble), lambda: torch.set_grad_enabled(False))
    assert "gradients are switched off" in message and torch.is_grad_enabled()


def test_nothing_that_an_answer_warns_of_logs_or_writes_to_stderr_is_seen(capfd):
    noisy = (
        SGD
        + """
    import logging, os, sys, warnings
    warnings.warn("noise")
    print("noise", file=sys.stderr)
    os.write(2, b"noise")
    logging.getLogger("x").critical("noise")
    print("on purpose")
"""
    )
    before = warnings.filters[:]
    check("ps1/sgd", sgd(noisy))
    assert capfd.readouterr() == (
        "on purpose\n" * 4 + "ps1/sgd: right, on inputs drawn at random\n",
        "",
    )
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard" and warnings.filters == before


def test_of_what_an_answer_prints_the_first_two_thousand_characters_are_shown(capsys):
    def talk(*_):
        print("a" * 1500)
        print("b" * 10**6)

    def run(random, answer):
        answer()
        yield None

    check(made(run), talk)
    out = capsys.readouterr().out
    assert out.count("a") >= 1500 and 490 < out.count("b") < 510
    assert "(the rest of what it prints is left out)" in out
    assert out.endswith("ps1/made: right, on inputs drawn at random\n")


# time


@pytest.fixture
def endless(monkeypatch):
    """Return an exercise that ends when its answer does, or after 0.3 seconds."""
    monkeypatch.setattr(checks, "limit", LIMIT)

    def run(random, answer):
        yield about("x")("y", answer(), None)

    return made(run, seconds=0.3)


def hold_on():
    while True:
        try:
            time.sleep(20)
        except Exception:  # as a loop that tries again does
            continue


def test_an_endless_answer_is_interrupted(endless, monkeypatch):
    monkeypatch.setattr(answers, "busy", lambda: False)
    start = time.monotonic()
    message = fails(endless, hold_on)
    assert message.startswith("ps1/made does not come to an end.\nIt has waited for ")
    assert time.monotonic() - start < 15


def test_what_only_a_busy_machine_has_held_up_is_not_called_wrong(monkeypatch):
    def late(random, answer):
        raise answers.Busy("The machine is busy.")
        yield

    message = fails(made(late), len)
    assert message == "ps1/made is not checked to the end.\nThe machine is busy."


def test_a_check_also_runs_in_a_thread(capsys, monkeypatch):
    monkeypatch.setattr(checks, "limit", LIMIT)
    before = signal.getsignal(signal.SIGALRM)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(check, "ps1/sgd", sgd()).result() is None
        with pytest.raises(Wrong, match="ps1/sgd is not right yet."):
            thread.submit(check, "ps1/sgd", lambda *_: None).result()
    assert capsys.readouterr().out.startswith("ps1/sgd: right")
    assert signal.getsignal(signal.SIGALRM) is before
