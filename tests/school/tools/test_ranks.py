"""Answers on ranks: what comes back, what counts as blank, and what is watched."""

import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import RankError
from manual_dp.school.tools.ranks import (
    COLLECTIVES,
    PAIRS,
    attempt,
    on_ranks,
    watched,
)


def test_results_come_in_the_order_of_the_ranks():
    assert on_ranks(lambda: dist.get_rank() * 10, 3, 60) == [0, 10, 20]


def test_an_answer_that_is_blank_on_any_rank_is_blank():
    def blank():
        if dist.get_rank() == 1:
            raise NotImplementedError
    with pytest.raises(NotImplementedError):
        on_ranks(blank, 2, 60)


def test_what_torch_has_not_implemented_is_no_blank_answer():
    def unknown():
        raise NotImplementedError("no such kernel")
    with pytest.raises(RankError, match="no such kernel") as caught:
        on_ranks(unknown, 2, 60)
    assert (caught.value.kind, caught.value.cause) == ("raised", "NotImplementedError")


def test_an_attempt_returns_the_results_or_the_error_and_its_line_in_the_cell():
    space = {}
    exec(compile("def fall():\n    raise KeyError('mine')", "<cell>", "exec"), space)
    assert attempt(lambda: dist.get_rank(), 2, 60) == {"ranks": [0, 1]}
    assert attempt(space["fall"], 1, 60) == {
        "error": "rank 0 raised KeyError: 'mine'", "kind": "raised",
        "place": " (in fall, line 2 of its cell)"}


def test_an_attempt_ends_at_its_deadline():
    def wait():
        dist.recv(torch.ones(1), 1 - dist.get_rank())
    found = attempt(wait, 2, 6)
    assert found["kind"] == "hung" and "rank 0 in recv, rank 1 in recv" in found["error"]


def test_an_attempt_that_is_blank_is_blank():
    def blank():
        raise NotImplementedError
    with pytest.raises(NotImplementedError):
        attempt(blank, 2, 60)


def test_only_the_names_that_are_asked_for_are_watched():
    def work():
        with watched(names=["barrier"]) as calls:
            dist.all_reduce(torch.ones(1))
            dist.barrier()
        return calls
    assert on_ranks(work, 2, 60) == [["barrier"]] * 2


def test_all_reduces_are_noted_by_their_size_and_others_by_their_name():
    def work():
        seen, t = [], torch.ones(3)
        with watched(seen.append) as calls:
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
        with watched(refuse) as calls:
            dist.all_reduce(torch.ones(1))
    assert calls == [] and dist.all_reduce is before


def test_every_name_is_one_of_torchs():
    assert all(callable(getattr(dist, name)) for name in COLLECTIVES + PAIRS)
