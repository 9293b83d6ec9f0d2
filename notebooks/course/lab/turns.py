"""Let both sides of a comparison take turns (A B, B A, A B, ...), and time each.

    turns           in this process
    turns_of_ranks  in processes, the slowest rank counts
    seconds         one call
    clock           the time, when every GPU has done what it was asked

What slows the machine then slows both sides. A side in this process returns its
seconds, of which it may leave some out; a side in a rank returns nothing.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

from course.lab.notebook import bar
from manual_dp.ranks import run_ranks


def turns(sides, count, label):
    """Call all sides `count` times here; return their seconds, turn by turn."""
    pairs, order = [], list(sides)
    for turn in bar(range(count), label):
        pair = [side() for side in order]
        pairs.append(pair[::-1] if turn % 2 else pair)
        order.reverse()
    return pairs


def turns_of_ranks(world_size, make, args, count):
    """Time both sides that `make(*args)` returns in each rank, the slowest one's."""
    ranks = run_ranks(_rank, world_size, make, args, count, timeout=900)
    return [[max(seconds) for seconds in zip(*pairs)] for pairs in zip(*ranks)]


def _rank(make, args, count):
    return turns([partial(_together, side) for side in make(*args)], count, "")


def _together(side):
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
