"""programs/larger.py and same_minibatch.py: the rates, the runs, what is stored."""

import json
import random
from pathlib import Path

import pytest
from programs import same_minibatch
from programs.larger import SEEDS, cases, error, learning_rate, scheduled, train_at

from course import check
from manual_dp import largest_difference

STORED = Path(__file__).parents[2] / "notebooks/results/digits-larger.json"


def test_the_rate_is_the_one_that_the_exercise_asks_for(capsys):
    def mine(step, base_lr, world_size, warmup_steps):  # the course's own is refused
        return learning_rate(step, base_lr, world_size, warmup_steps)

    check("train/learning_rate", mine, draws=random.Random(0))
    assert "right" in capsys.readouterr().out


def test_the_schedule_goes_up_and_then_down_to_0_and_stays_there():
    rates = [scheduled(step, 0.1, 4, 2, 6) for step in range(8)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.3, 0.2, 0.1, 0, 0])


def test_each_step_asks_for_its_rate_and_rate_0_moves_nothing():
    asked = []

    def rate(step):
        asked.append(step)
        return 0.0

    (first,), (share,), steps = train_at(rate, 8, [0], epochs=1, look=True)
    (both,), _, _ = train_at(rate, 8, [0], epochs=2)
    assert abs(first - both) < 1e-3 and share < 0.5 and steps == [None]
    assert asked == [*range(12), *range(24)]


def test_a_seed_trains_as_it_does_alone_and_not_as_another_one():
    alone = train_at(lambda step: 0.08, 8, [3], epochs=2, look=True)
    among = train_at(lambda step: 0.08, 8, [1, 3], epochs=2, look=True)
    (loss,), (share,), (steps,) = alone
    assert among[0][1] == pytest.approx(loss, abs=2e-3)
    assert among[1][1] == pytest.approx(share, abs=0.01) and among[2][1] == steps
    assert abs(among[0][0] - loss) > 0.01


def test_the_standard_error_is_that_of_a_mean():
    assert error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((5 / 3) ** 0.5 / 2)


def test_the_stored_runs_are_those_of_the_program():
    runs = json.loads(STORED.read_text(encoding="utf-8"))["runs"]
    results = "loss", "test_acc", "steps_to_90"
    noted = [{key: run[key] for key in run if key not in results} for run in runs]
    assert noted == [case for case, _ in cases()]
    assert {len(run[key]) for run in runs for key in results} == {SEEDS}


def test_clipping_the_sum_is_one_device_and_clipping_before_it_is_not():
    one = same_minibatch.clipped(0, same_minibatch.ONE, False, steps=2)
    for before, small in (False, True), (True, False):
        four = same_minibatch.clipped(0, same_minibatch.FOUR, before, steps=2)
        assert (largest_difference(four, one) < 1e-12) == small
