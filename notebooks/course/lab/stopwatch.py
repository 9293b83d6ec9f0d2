"""Time both sides of a comparison, which take turns: A B, B A, A B, ...

    time_turns           in this process
    time_turns_on_ranks  in processes, the slowest rank counts
    seconds              one call
    clock                the time, when every GPU has done what it was asked

Turns, so that whatever slows the machine down slows down both sides. A side in this
process returns its seconds, of which it may leave some out; a side in a rank returns
nothing.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

from course.lab.notebook import bar
from manual_dp.ranks import run_ranks


def time_turns(sides, count, label):
    """Call all sides `count` times here; return their seconds, turn by turn."""
    turns, order = [], list(sides)
    for turn in bar(range(count), label):
        times = [side() for side in order]
        if turn % 2:  # they were called in reverse
            times.reverse()
        turns.append(times)
        order.reverse()
    return turns


def time_turns_on_ranks(world_size, make, args, count):
    """Time both sides that `make(*args)` returns in each rank, the slowest one's."""
    ranks = run_ranks(_rank, world_size, make, args, count, timeout=900)
    slowest = []
    for turn in zip(*ranks):  # of each rank, the seconds of its sides
        slowest.append([max(seconds) for seconds in zip(*turn)])
    return slowest


def _rank(make, args, count):
    sides = [partial(_time_together, side) for side in make(*args)]
    return time_turns(sides, count, "")


def _time_together(side):
    dist.barrier()
    begin = time.perf_counter()
    side()
    return time.perf_counter() - begin


def seconds(function):
    """Call `function()` and return its seconds."""
    start = clock()
    function()
    return clock() - start


def clock():
    """Return the time in seconds, when every GPU has done what it was asked."""
    for i in range(torch.cuda.device_count()):
        torch.cuda.synchronize(i)
    return time.perf_counter()
