"""Alpha and beta of this machine, from all-reduces that are timed on real ranks.

    measure    seconds of an all-reduce of each size, median of some runs
    fit        alpha and beta that say so, by least squares of the relative error
    predict    seconds of any size, by this alpha and beta
    error      how far predictions are from what was measured, in the median
"""

import time
from collections import namedtuple
from statistics import median

import torch
import torch.distributed as dist

from course.lab.network import forms
from manual_dp.ranks import ring_allreduce, run_ranks

Fit = namedtuple("Fit", "alpha beta")
FEWEST = 5  # calls that are timed at once: a single one is early or late by half


def measure(world_size, sizes, repeat=7, function=ring_allreduce, timeout=300):
    """Return {size: seconds} of `function` on so many ranks, the slowest rank's.

    sizes: bytes of a float32 tensor. A size is timed `repeat` times after a first, some
    calls at once, the sizes in turn, so that a slow moment meets all of them; the
    median counts.
    """
    ranks = run_ranks(_rank, world_size, list(sizes), repeat, function, timeout=timeout)
    return {size: median(max(rank[i][turn] for rank in ranks) for turn in range(repeat))
            for i, size in enumerate(sizes)}


def _rank(sizes, repeat, function):
    tensors = [torch.zeros(max(1, size // 4)) for size in sizes]
    found = [[] for _ in sizes]
    for turn in range(repeat + 1):
        for tensor, times in zip(tensors, found):
            calls = max(FEWEST, min(20, 2**20 // tensor.nbytes))
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                function(tensor)
            if turn:
                times.append((time.perf_counter() - begin) / calls)
    return found


def fit(seconds, world_size, way="ring"):
    """Return the `Fit` to {size: seconds}: alpha in seconds, beta in seconds a byte.

    Each size counts by its relative error, or the largest would decide alone. Neither
    number is below 0. Raises ValueError for fewer than two sizes.
    """
    if len(seconds) < 2:
        raise ValueError(f"need at least 2 sizes to fit 2 numbers, got {len(seconds)}")
    rows = torch.tensor([_counts(way, world_size, size) for size in seconds],
                        dtype=torch.float64)
    took = torch.tensor(list(seconds.values()), dtype=torch.float64)[:, None]
    rows, ones = rows / took, torch.ones_like(took)
    found = torch.linalg.lstsq(rows, ones).solution[:, 0]
    for other in (1, 0):  # one of them below 0: it is 0, and the other does it alone
        if found[1 - other] < 0:
            column = rows[:, other]
            found = torch.zeros(2, dtype=torch.float64)
            found[other] = column.sum() / (column @ column)
    return Fit(*found.tolist())


def predict(fitted, world_size, size, way="ring"):
    """Return the seconds of an all-reduce of `size` bytes."""
    count, row = _counts(way, world_size, size)
    return count * fitted.alpha + row * fitted.beta


def error(fitted, world_size, seconds, way="ring"):
    """Return the median of |predicted / measured - 1| over {size: seconds}."""
    return median(abs(predict(fitted, world_size, size, way) / took - 1)
                  for size, took in seconds.items())


def _counts(way, world_size, size):
    """Return (steps, bytes in a row) of a way."""
    return (forms.steps(way, world_size),
            forms.in_a_row(way, world_size, max(1, int(size) // 4)))
