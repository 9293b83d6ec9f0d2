"""A slow loader: how long steps wait, by arithmetic. Sleeps decide, not the machine."""

from itertools import count
from types import SimpleNamespace

import pytest

from course.lab import loading
from course.lab.loading import SlowImages, waits

TICK = 0.15  # seconds: a machine may be late by most of it


@pytest.mark.parametrize("workers, ticks", [(0, 3), (1, 1), (2, 0)])
def test_a_step_waits_for_what_loading_takes_longer_than_the_steps_before(workers, ticks):
    # every 3 ticks a worker has a minibatch, and the step takes 2
    assert waits([3] * 5, 2, workers, tick=TICK) == [ticks] * 3


def test_minibatches_loaded_ahead_cover_a_slow_one():
    # the store is full when the slow one begins: 3 steps of 4 ticks, and 9 are needed
    assert waits([1, 1, 1, 9, 1], 4, 1, prefetch=3, tick=TICK) == [0, 0, 0]
    assert sum(waits([1, 1, 1, 9, 1], 4, 1, prefetch=1, tick=TICK)) == 5


@pytest.mark.parametrize("late", [-0.04, 0, 0.04])
def test_a_wait_that_is_off_by_part_of_a_tick_is_rounded(monkeypatch, late):
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds):
        clock.now += seconds + late
    monkeypatch.setattr(loading, "time", SimpleNamespace(
        sleep=sleep, perf_counter=lambda: clock.now))
    assert waits([3] * 4, 2, tick=0.1) == [3, 3]


def test_a_run_counts_when_another_agrees_and_ticks_grow_where_none_does(monkeypatch):
    runs, seen = iter([[1], [2], [3], [4], [5], [6], [5]]), []

    def run(loads, compute, workers, prefetch, tick):
        seen.append(tick)
        return next(runs)
    monkeypatch.setattr(loading, "_run", run)
    assert waits([1] * 3, 1, tick=0.5) == [5]
    assert seen == [0.5] * 4 + [1.0] * 3


def test_a_machine_on_which_no_two_runs_agree_is_too_busy(monkeypatch):
    numbers = count()
    monkeypatch.setattr(loading, "_run", lambda *plan: [next(numbers)])
    with pytest.raises(RuntimeError, match="even in ticks of 8 s: the machine is too busy"):
        waits([1] * 3, 1, tick=0.5)


@pytest.mark.parametrize("loads, workers, prefetch, message", [
    ([1, 1], 0, 2, r"three minibatches or more, got \[1, 1\]"),
    ([1] * 3, -1, 2, "workers must be >= 0 and prefetch >= 1, got -1 and 2"),
    ([1] * 3, 1, 0, "got 1 and 0"),
])
def test_what_cannot_be_loaded_is_refused(loads, workers, prefetch, message):
    with pytest.raises(ValueError, match=message):
        waits(loads, 1, workers, prefetch)


def test_a_slow_image_is_an_image():
    images = SlowImages([0, 0])
    assert len(images) == 2 and images[1].shape == (3, 32, 32)
