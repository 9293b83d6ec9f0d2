"""A loader that is slow on purpose: how long does each step wait for its minibatch?

    waits        ticks that each step waits, once the workers have started
    SlowImages   a data set that sleeps before it returns an image

The loader is torch's own, with its worker processes; only loading and computing are
sleeps of whole ticks. So it is certain who waits for whom: a fast machine cannot
shorten a sleep. A busy one is late, in the step or in the worker, by part of a tick.
So waits are rounded to whole ticks, a run counts when another agrees with it, and
where none does, the ticks become longer.
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

TRIES, LONGER = 4, 4  # runs with one tick; times that it is doubled


class SlowImages(Dataset):
    """Let image i take `seconds[i]` to load."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        """Return how many images there are."""
        return len(self.seconds)

    def __getitem__(self, i):
        """Return image i, all zeros, after its time."""
        time.sleep(self.seconds[i])
        return torch.zeros(3, 32, 32)


def waits(loads, compute, workers=0, prefetch=2, tick=0.1):
    """Return how many ticks each step, from the third on, waits for its minibatch.

    loads: the ticks that it takes to load each minibatch, of one image. compute: the
    ticks of a step. workers: processes that load; 0 is the training process itself.
    prefetch: minibatches that each worker loads ahead. tick: seconds.
    The first two are left out: there the workers are still starting. Two runs must
    agree; where no two of four do, the tick is doubled. Raises RuntimeError if a tick
    of 16 times the length is still too short.
    """
    _check(loads, workers, prefetch)
    for longer in range(LONGER + 1):
        seen = []
        for _ in range(TRIES):
            ticks = _run(loads, compute, workers, prefetch, tick * 2**longer)
            if ticks in seen:
                return ticks
            seen.append(ticks)
    raise RuntimeError(f"no two runs agree, even in ticks of {tick * 2**LONGER:g} s: "
                       "the machine is too busy")


def _run(loads, compute, workers, prefetch, tick):
    images = SlowImages([tick * load for load in loads])
    ahead = {"prefetch_factor": prefetch} if workers else {}
    ticks, begin = [], time.perf_counter()
    for _ in DataLoader(images, 1, num_workers=workers, **ahead):
        ticks.append(round((time.perf_counter() - begin) / tick))
        time.sleep(tick * compute)
        begin = time.perf_counter()
    return ticks[2:]


def _check(loads, workers, prefetch):
    if len(loads) < 3:
        raise ValueError(f"loads must have three minibatches or more, got {loads!r}")
    if workers < 0 or prefetch < 1:
        raise ValueError(f"workers must be >= 0 and prefetch >= 1, got {workers!r} and "
                         f"{prefetch!r}")
