"""Answers on ranks: what comes back, what counts as blank, which calls are noted."""

import pytest
import torch
import torch.distributed as dist

from course.school import ranks
from course.school.answers import Busy
from course.school.ranks import (
    WAITED,
    attempt,
    calls_of_collectives,
    failed,
    in_another_process,
    on_ranks,
)
from manual_dp.ranks import RankError


def test_results_come_in_the_order_of_the_ranks():
    assert on_ranks(lambda: dist.get_rank() * 10, 3, 60) == [0, 10, 20]


def test_an_answer_that_is_blank_on_any_rank_is_blank():
    def blank():
        if dist.get_rank() == 1:
            raise NotImplementedError

    with pytest.raises(NotImplementedError):
        attempt(blank, 2, 60)


def test_what_torch_has_not_implemented_is_no_blank_answer():
    def unknown():
        raise NotImplementedError("no such kernel")

    with pytest.raises(RankError, match="no such kernel") as caught:
        on_ranks(unknown, 2, 60)
    assert (caught.value.kind, caught.value.cause) == ("raised", "NotImplementedError")


def test_an_attempt_returns_the_results_or_the_error_and_its_line_in_the_cell():
    space = {}
    exec(compile("def fall():\n    raise KeyError('mine')", "<cell>", "exec"), space)
    assert attempt(lambda: dist.get_rank(), 2, 60) == ([0, 1], None)
    results, error = attempt(space["fall"], 1, 60)
    assert results is None and failed("a", error, "b").splitlines() == [
        "given   a; on ranks",
        "got     no result: rank 0 raised KeyError: 'mine' (in "
        "fall, line 2 of its cell)",
        "wanted  b",
    ]


def test_the_hash_of_a_text_is_another_in_another_process(monkeypatch):
    assert in_another_process(lambda n: n + 1, 2) == 3
    assert in_another_process(lambda: hash("seed 1")) != hash("seed 1")


def test_a_rank_that_computes_without_an_end_is_told_so():
    def endless():
        while dist.get_rank() == 1:
            pass

    _, error = attempt(endless, 2, 2)
    assert error.cause == "Endless" and "a loop that does not end" in str(error)


def runs_that_hang(monkeypatch, states, is_busy):
    """Let ranks come to no end, being in these states; return the seconds they had."""
    had = []

    def run_ranks(work, world_size, timeout):
        had.append(timeout)
        error = RankError("time was up", kind="hung")
        error.states = dict(enumerate(states))
        raise error

    monkeypatch.setattr(ranks, "run_ranks", run_ranks)
    monkeypatch.setattr(ranks, "busy", lambda: is_busy)
    return had


@pytest.mark.parametrize(
    "states, is_busy, error, had",
    [
        (["waits", "waits"], False, RankError, [3]),
        (["waits", "waits"], True, RankError, [3, 12]),
        (["waits", "sleeps"], False, RankError, [3]),
        (["waits", "sleeps"], True, Busy, [3, 12]),
        (["waits", "runs"], False, Busy, [3, 12]),
    ],
)
def test_ranks_that_a_busy_machine_may_have_held_up_get_more_time_and_no_blame(
    states, is_busy, error, had, monkeypatch
):
    seconds = runs_that_hang(monkeypatch, states, is_busy)
    with pytest.raises(error):
        on_ranks(lambda: None, 2, 3)
    assert seconds == had


@pytest.mark.parametrize(
    "kind, error, said",
    [
        ("raised", "rank 1 raised KeyError:\n 3", "one"),
        ("raised", "rank 1 raised ValueError: 3", None),
        ("raised", "rank 1 raised RuntimeError: [gloo] 3", "they waited"),
        ("hung", "time was up", "they waited"),
    ],
)
def test_ranks_that_came_to_no_results_are_told_a_hint(kind, error, said):
    message = failed(
        "2 ranks",
        RankError(error, kind=kind),
        "a sum",
        {"one": "KeyError: 3", "none": False, "they waited": WAITED},
    )
    assert message.partition("\nperhaps ")[2] == (said or "")
    assert failed("2 ranks", None, "a sum", {"one": ""}) is None


def test_all_reduces_are_noted_by_their_size_and_others_by_their_name():
    def work():
        seen, t = [], torch.ones(3)
        with calls_of_collectives(seen.append) as calls:
            dist.all_reduce(t)
            dist.all_reduce(tensor=t[:2])
            dist.broadcast(t, 0)
            dist.barrier()
        dist.all_reduce(t)  # no longer
        return calls, seen

    names = ["all_reduce", "all_reduce", "broadcast", "barrier"]
    assert on_ranks(work, 2, 60) == [[[3, 2, "broadcast", "barrier"], names]] * 2


def test_a_collective_does_not_begin_if_the_function_before_it_raises():
    def refuse(name):
        raise ValueError(name)

    before = dist.all_reduce
    with pytest.raises(ValueError, match="all_reduce"):
        with calls_of_collectives(refuse) as calls:
            dist.all_reduce(torch.ones(1))
    assert calls == [] and dist.all_reduce is before
