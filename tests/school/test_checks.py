"""The check in a notebook: what it prints, raises, interrupts, and never lets pass."""

import copy
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import pytest
import torch

import manual_dp
from manual_dp.ranks import RankError
from manual_dp.school import checks
from manual_dp.school.checks import Wrong, check, judge
from manual_dp.school.exercise import Exercise, exercises, find
from manual_dp.school.tools.run import run

PS1 = exercises("ps1")
DEEP = json.loads("[" * 900 + "]" * 900)
# everything that JSON can hold and that no answer should be
GARBAGE = [
    None, True, False, 0, 1, -1, 3, 10**400, 0.0, 1.5, math.nan, math.inf, -math.inf,
    "", "x", "0", "\ud800\0", [], [[]], [None], [0], [0.0] * 4, [[0.0] * 3] * 4, ["x"],
    [math.nan] * 4, [True] * 4, [[[[]]]], {}, {"": None}, {"refused": True},
    {"refused": 1}, {"refused": False}, {"steps": []}, {"steps": [{}, {}]},
    {"steps": {"0": 1, "1": 2}}, {"tensors": None, "list": [], "returned": []},
    {"params": [], "gradients left": 0.0}, {"params": None, "gradients left": "0"},
    {"X": "abc", "y": "abc"}, {"X": [], "y": []}, {"X": {}, "y": {}}, DEEP,
    {"X": [DEEP] * 3, "y": DEEP}, {"tensors": DEEP, "list": DEEP, "returned": DEEP},
    {"made": [], "ready": [], "written": [], "source": [],
     "source wants gradients": []}]


def answers(exercise):
    return [getattr(manual_dp, name) for name in exercise.answers]


def fails(name, *answers):
    """Return the message of a check that rejects."""
    with pytest.raises(Wrong) as caught:
        check(name, *answers)
    return str(caught.value)


# what a check says

@pytest.mark.parametrize("times", [1, 3])
def test_a_right_answer_prints_one_line(capsys, times):
    cases = len(list(find("ps1/sgd").draw(random.Random())))
    check("ps1/sgd", manual_dp.sgd, times=times)
    out, err = capsys.readouterr()
    assert (out, err) == (f"ps1/sgd: right, on {cases * times} random inputs\n", "")


def test_a_wrong_answer_is_told_given_got_wanted_and_a_guess(capsys):
    lines = fails("ps1/allreduce", lambda data: None).splitlines()
    assert lines[0] == "ps1/allreduce is not right yet."
    assert [line[:8] for line in lines[1:]] == ["given   ", "got     ", "wanted  ",
                                                "perhaps "]
    assert capsys.readouterr().out == ""


def floats(X, y, device_params, devices, lr):
    """Train rightly; torch warns of float() of what has a gradient, here in each step."""
    loss = torch.ones(1, requires_grad=True) * 2
    float(loss)
    torch.tensor(loss)
    warnings.warn("each time", UserWarning, stacklevel=2)
    print("to Python's stderr", file=sys.stderr)
    os.write(2, b"to the descriptor, as torch's C++ does\n")
    return manual_dp.train_batch(X, y, device_params, devices, lr)


def test_what_an_answer_says_to_stderr_is_no_part_of_the_check(capfd):
    # nbgrader gives no points for a cell with anything on stderr
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        check("ps1/train_batch", floats)
        out, err = capfd.readouterr()
        assert out.startswith("ps1/train_batch: right") and (err, heard) == ("", [])
        for speaks in (lambda: warnings.warn("again", UserWarning, stacklevel=1),
                       lambda: os.write(2, b"again"),
                       lambda: print("again", file=sys.stderr)):
            speaks()
    assert [str(one.message) for one in heard] == ["again"]
    assert capfd.readouterr().err == "againagain\n"


def test_stderr_is_there_again_after_a_check_that_failed(capfd):
    def fail(data):
        os.write(2, b"lost")
        raise ArithmeticError("boom")
    before, files = sys.stderr, len(os.listdir("/proc/self/fd"))
    with pytest.raises(ArithmeticError):
        check("ps1/allreduce", fail)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard" and sys.stderr is before
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("error", [
    NotImplementedError(), NotImplementedError("write me"),
    RankError("rank 1 raised", kind="raised", cause="NotImplementedError")])
def test_a_blank_answer_is_told_so(error):
    def blank(data):
        raise error
    assert fails("ps1/allreduce", blank) == (
        "ps1/allreduce is not written yet: its cell still raises NotImplementedError.")


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), RankError("rank 1 died"),
                                   RankError("it said NotImplementedError", cause="OSError"),
                                   KeyError("mine"), SystemExit(0), RuntimeError("x")])
def test_what_an_answer_raises_itself_is_passed_on(error):
    def broken(data):
        raise error
    with pytest.raises(type(error)) as caught:
        check("ps1/allreduce", broken)
    assert caught.value is error


@pytest.mark.parametrize("name, given, message", [
    ("ps1/sgd", [], r"ps1/sgd checks sgd; got 0 arguments"),
    ("ps1/sgd", [manual_dp.sgd] * 2, r"ps1/sgd checks sgd; got 2 arguments"),
    ("ps1/fly", [manual_dp.sgd], r"no exercise is called 'ps1/fly'"),
    ("ps99/sgd", [manual_dp.sgd], r"no problem set is called 'ps99'")])
def test_a_check_that_is_called_wrongly_says_how(name, given, message):
    with pytest.raises(ValueError, match=message):
        check(name, *given)


def test_a_check_draws_other_inputs_each_time():
    seen = []

    def look(params, lr, batch_size):
        seen.append([lr, batch_size, *(p.tolist() for p in params)])
        manual_dp.sgd(params, lr, batch_size)
    check("ps1/sgd", look, times=2)
    check("ps1/sgd", look)
    assert len(seen) > 3
    assert len({json.dumps(case) for case in seen}) == len(seen)


def test_a_notebook_shows_the_message_and_no_frames(tmp_path):
    script = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from manual_dp.school.checks import check")
shell.run_cell("check('ps1/allreduce', lambda data: None)")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env={**os.environ, "IPYTHONDIR": str(tmp_path)}, timeout=100)
    lines = done.stdout.splitlines()
    assert lines[0] == "ps1/allreduce is not right yet." and done.stderr == ""
    assert [line[:8].strip() for line in lines[1:]] == ["given", "got", "wanted",
                                                        "perhaps"]


# time

@pytest.fixture
def short(monkeypatch):
    """Let ps1/allreduce take 0.3 seconds."""
    exercise = replace(find("ps1/allreduce"), seconds=0.1)
    monkeypatch.setattr(checks, "find", lambda name: exercise)


@pytest.mark.parametrize("wait", [lambda: None, lambda: time.sleep(20),
                                  threading.Event().wait])
def test_an_endless_answer_is_interrupted(short, wait):
    def endless(data):
        while True:
            wait()
    start = time.monotonic()
    assert "It was still at work after 0.3" in fails("ps1/allreduce", endless)
    assert time.monotonic() - start < 5


def test_a_right_answer_is_not_called_wrong_when_time_ends_in_the_judge(monkeypatch):
    def slow(case, got):
        time.sleep(20)
        yield None
    exercise = replace(find("ps1/allreduce"), seconds=0.1, judge=slow)
    monkeypatch.setattr(checks, "find", lambda name: exercise)
    message = fails("ps1/allreduce", manual_dp.allreduce)
    assert "not right" not in message and "run the cell again" in message


@pytest.mark.parametrize("answer", [
    manual_dp.allreduce, lambda data: None, lambda data: 1 / 0,
    lambda data: time.sleep(20)])
def test_the_alarm_is_left_as_it_was(short, answer):
    def mine(*_):
        pass
    before = signal.signal(signal.SIGALRM, mine)
    try:
        try:
            check("ps1/allreduce", answer)
        except (Wrong, ZeroDivisionError):
            pass
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_check_also_runs_in_a_thread(capsys):
    before = signal.getsignal(signal.SIGALRM)
    errors = []

    def work():
        try:
            check("ps1/sgd", manual_dp.sgd)
            check("ps1/sgd", lambda *_: None)
        except Wrong as wrong:
            errors.append(str(wrong))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert capsys.readouterr().out.startswith("ps1/sgd: right")
    assert errors[0].startswith("ps1/sgd is not right yet.")
    assert signal.getsignal(signal.SIGALRM) is before


# judge

@pytest.mark.parametrize("name", PS1)
def test_garbage_never_passes(name):
    exercise = PS1[name]
    for case in exercise.draw(random.Random(0)):
        for got in GARBAGE:
            if got == {"refused": True} and len(case.get("X", [])) != len(
                    case.get("y", [])):
                continue  # the right answer of this case
            message = judge(exercise, case, got)
            assert isinstance(message, str) and "got     " in message, got
            assert len(message) < 3000


def entries(value, place=()):
    """Yield the place of every number and truth value in nested lists and dicts."""
    if isinstance(value, (list, dict)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            yield from entries(part, (*place, key))
    else:
        yield place


def _at(value, place):
    for key in place:
        value = value[key]
    return value


def changed(value, place, new):
    value = part = copy.deepcopy(value)
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = new(part[place[-1]]) if callable(new) else new
    return value


@pytest.mark.parametrize("name", PS1)
def test_every_number_of_a_right_answer_counts(name):
    exercise = PS1[name]
    changes = [math.nan, math.inf, None, "1", 10**400, [], True, 1e4]
    for case in list(exercise.draw(random.Random(0)))[-3:]:
        right = json.loads(json.dumps(run(name, case, answers(exercise))))
        assert judge(exercise, case, right) is None
        places = [place for place in entries(right)
                  if place[0] not in ("list", "returned")  # for hints only
                  and isinstance(_at(right, place), (int, float))]
        for place in random.Random(1).sample(places, min(5, len(places))):
            for value in [*changes, lambda x: [x], lambda x: x + 1e-3]:
                got = changed(right, place, value)
                assert got == right or judge(exercise, case, got), (place, value)


@pytest.mark.parametrize("error", [
    TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError,
    OverflowError, RuntimeError, RecursionError, UnicodeError])
def test_a_judge_that_stumbles_over_a_form_rejects_it(error):
    def stumble(case, got):
        raise error("private")
    exercise = Exercise("ps1/x", 1, None, stumble)
    for got in (DEEP, [1.0]):
        message = judge(exercise, {}, got)
        assert message.endswith("\nwanted  numbers in another form")
        assert "private" not in message


def test_only_numbers_arrive_at_the_judge():
    class Sly(float):  # says that it is what is wanted
        __le__ = __ge__ = __eq__ = lambda *_: True
        __hash__ = None
    exercise = find("ps1/train_batch")
    case = next(iter(exercise.draw(random.Random(0))))

    def sly(*args):
        manual_dp.train_batch(*args)
        return Sly(9)
    got = checks._run(exercise, case, [sly])
    assert type(got["steps"][0]["loss"]) is float
    assert "the mean loss" in judge(exercise, case, got)
