import math

import pytest
import torch

from course.lab import replay
from course.lab.replay import Turn


def ones(weights, i):
    return torch.ones_like(weights)


def valley(weights, i):
    """Return the gradient of half of the square."""
    return weights


def test_workers_wait_for_each_other_or_write_in_the_order_of_time_then_of_number():
    assert replay.together([1, 3], 7) == [Turn(0, 0, 1), Turn(1, 0, 3), Turn(0, 3, 4),
                                          Turn(1, 3, 6)]
    assert replay.alone([1, 2], 3) == [Turn(0, 0, 1), Turn(0, 1, 2), Turn(1, 0, 2),
                                       Turn(0, 2, 3)]
    assert replay.idle(replay.together([1, 1, 1, 4], 16), 4, 16) == 9 / 16
    assert replay.idle(replay.alone([1, 3], 4), 2, 4) == 1 / 8


@pytest.mark.parametrize("n, slow", [(2, 3), (4, 4), (3, 7)])
def test_a_slow_worker_misses_all_that_the_others_write_meanwhile(n, slow):
    turns = replay.alone([1] * (n - 1) + [slow], 3 * slow)
    _, stale = replay.replay(turns, ones, torch.zeros(1), 0.1)
    assert [s for s, turn in zip(stale, turns) if turn.worker == n - 1] == [
        slow * (n - 1)] * 3


def test_a_gradient_is_that_of_the_weights_that_were_read():
    # by hand: w0 = 1, rate 1/2. Worker 0 writes 1/2; worker 1 had read 1: 0; worker 0
    # had read 1/2: -1/4; worker 1 had read 0: -1/4.
    seen = []

    def noted(weights, i):
        seen.append((i, weights.item()))
        return weights
    end, stale = replay.replay(replay.alone([1, 1], 2), noted, torch.ones(1), 0.5)
    assert seen == [(0, 1.0), (1, 1.0), (2, 0.5), (3, 0.0)]
    assert end.item() == -0.25 and stale == [0, 1, 1, 1]


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_the_rate_at_which_a_stale_descent_blows_up_is_the_one_of_theory(staleness):
    limit = 2 * math.sin(math.pi / (4 * staleness + 2))  # Levin and May 1976
    turns = replay.alone([1] * (staleness + 1), 600)
    start = torch.ones(1, dtype=torch.float64)
    below, above = (abs(replay.replay(turns, valley, start, part * limit)[0].item())
                    for part in (0.9, 1.1))
    assert below < 1e-3 and above > 1e3


def test_a_round_writes_the_mean_of_its_gradients_once():
    turns, seen = replay.together([1, 2], 4), []

    def rising(weights, i):
        seen.append(weights.item())
        return torch.full_like(weights, i)
    end, stale = replay.in_rounds(turns, rising, torch.zeros(1), 1.0)
    assert end.item() == -(0 + 1) / 2 - (2 + 3) / 2
    assert seen == [0.0, 0.0, -0.5, -0.5] and stale == [0] * 4
