"""Both sides take turns, in one process and in ranks."""

import sys

import cloudpickle
import torch.distributed as dist

from course.lab import stopwatch
from manual_dp.ranks import run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_three_sides_take_turns_and_seconds_keep_their_side():
    order = []
    sides = [lambda i=i: order.append(i) or 10 * i for i in range(3)]
    assert stopwatch.time_turns(sides, 3, "") == [[0, 10, 20]] * 3
    assert order == [0, 1, 2, 2, 1, 0, 0, 1, 2]


def log_of(events, turns):
    """Be a rank that notes which side runs; the second side is rank 1's slow one."""

    def make():
        return (lambda: events.append("a")), (lambda: events.append("b"))

    pairs = stopwatch._rank(make, (), turns)
    return "".join(events), len(pairs)


def test_sides_take_turns_in_every_rank():
    assert run_ranks(log_of, 2, [], 4) == [("abbaabba", 4)] * 2


def late(rank):
    import time

    return (lambda: time.sleep(0.05 if dist.get_rank() == rank else 0)), lambda: None


def test_a_turn_lasts_until_the_slowest_rank_is_done():
    for rank in (0, 1):
        for slow, _ in stopwatch.time_turns_on_ranks(2, late, [rank], 2):
            assert slow >= 0.05
