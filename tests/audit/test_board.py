"""Ranks put something on a board over the store, and read what others put."""

import time

import torch
import torch.distributed as dist

from manual_dp.audit.board import Board
from manual_dp.ranks import run_ranks


def exchange(name, value):
    board = Board(name)
    board.put(value)
    said = board.all(30)
    board.clear_previous()
    return said


def talk():
    rank = dist.get_rank()
    first = [exchange("a", (rank, t)) for t in range(3)]
    return first[-1], exchange("b", torch.tensor(rank))


def test_all_ranks_hear_what_all_say_in_order():
    for said, tensors in run_ranks(talk, 3):
        assert said == [(0, 2), (1, 2), (2, 2)]
        assert [int(one) for one in tensors] == [0, 1, 2]


def half():
    board, rank = Board("x"), dist.get_rank()
    if rank < 2:
        board.put(f"so far, from {rank}", last=rank == 0)
        time.sleep(0.3)
    begin = time.monotonic()
    return board.all(0.5), board.complete(), time.monotonic() - begin


def test_nobody_waits_longer_than_asked_for_one_that_has_not_put_its_last():
    said, complete, seconds = run_ranks(half, 3)[0]
    assert said == ["so far, from 0", "so far, from 1", None]
    assert not complete and 0.4 < seconds < 5
