"""A learner's answer runs with the course's parts, in its time, and nothing is left."""

import functools
import signal
import time

import pytest
import torch

from course.school import answers
from course.school.answers import Busy, TimeIsOver, kept, limit, placed, settings


def mine(*_):
    """Be the handler that was there before."""


@pytest.fixture
def clock_as_it_was():
    before = signal.signal(signal.SIGALRM, mine)
    yield
    handler, left = (
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL),
    )
    signal.signal(signal.SIGALRM, before)
    assert handler is mine and left == (0, 0)


def compute():
    while True:
        pass


def wait():
    time.sleep(60)


@pytest.mark.parametrize(
    "block, is_busy, error, said",
    [
        (compute, False, TimeIsOver, "It has computed for 0.05 s"),
        (compute, True, TimeIsOver, "It has computed for 0.05 s"),
        (wait, False, TimeIsOver, "does it wait in vain"),
        (wait, True, Busy, "it got 0 of 1 s. Run the cell again"),
    ],
)
def test_a_block_that_does_not_end_is_told_what_it_did(
    block, is_busy, error, said, clock_as_it_was, monkeypatch
):
    monkeypatch.setattr(answers, "busy", lambda: is_busy)
    with pytest.raises(TimeIsOver, match=said) as caught, limit(0.05, patience=0.6):
        block()
    assert type(caught.value) is error


def test_what_ends_in_time_is_left_alone(clock_as_it_was):
    with limit(60):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60


def test_a_machine_is_busy_if_twice_as_much_runs_as_it_has_processors(monkeypatch):
    monkeypatch.setattr(answers.os, "cpu_count", lambda: 2)
    for load, said in (3.9, False), (4.1, True):
        monkeypatch.setattr(answers.os, "getloadavg", lambda load=load: (load, 0, 0))
        assert answers.busy() is said


def test_settings_are_put_back_after_an_error():
    before = settings()
    with pytest.raises(KeyError), kept():
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise KeyError
    assert settings() == before


# parts


def cell(source, space, file):
    exec(compile(source, file, "exec"), space)


@pytest.fixture
def space():
    names = {"functools": functools}
    cell("def part():\n    return 'other cell'", names, "<cell 1>")
    return names


@pytest.mark.parametrize(
    "source, said",
    [
        ("@functools.lru_cache\ndef answer(): return part()", "the course's"),
        (
            "class A:\n    def __call__(self): return part()\nanswer = A()",
            "the course's",
        ),
        ("def part(): return 'same cell'\ndef answer(): return part()", "same cell"),
    ],
)
def test_an_answer_finds_its_cells_part_then_the_courses_then_the_learners(
    space, source, said
):
    cell(source, space, "<cell 2>")
    before = space["part"]
    with placed({"part": lambda: "the course's"}, [space["answer"]]):
        found = space["answer"]()
    assert found == said and space["part"] is before


def test_a_part_that_was_not_there_is_gone_afterwards(space):
    del space["part"]
    cell("class Answer:\n    def call(self):\n        return part()", space, "<cell 2>")
    with (
        pytest.raises(KeyError),
        placed({"part": lambda: "the course's"}, [space["Answer"]]),
    ):
        assert space["Answer"]().call() == "the course's"
        raise KeyError
    assert "part" not in space


def test_what_has_no_names_of_its_own_is_left_alone():
    with placed({"part": print}, [len, 3]):
        pass
