"""The laws by hand; what is measured, with networks that sleep; count_price_look's program."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import scaling, steps_to
from programs.scaling import amdahl, break_even, fit_amdahl
from torch import nn

STORED = Path(__file__).parents[2] / "notebooks/results/digits-steps.json"
LONG = 0.1  # seconds that a row takes


@pytest.mark.parametrize("serial, world_size, expected", [
    (0, 8, 8), (1, 8, 1), (0.5, 2, 4 / 3), (1 / 9, 4, 3), (0.25, 1, 1)])
def test_amdahls_law_by_hand(serial, world_size, expected):
    assert amdahl(serial, world_size) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0.001, 1000), st.floats(0, 1000))
def test_the_fit_finds_the_serial_part_of_exact_times(one, serial):
    times = {n: one * (serial + 1 / n) for n in (1, 2, 4)}
    assert fit_amdahl(times) == pytest.approx(serial / (serial + 1), abs=1e-6)


@given(st.integers(1, 20), st.integers(0, 200), st.integers(2, 8))
def test_break_even_is_the_smallest_number_of_rows_that_is_faster(row, sending, n):
    def faster(rows):
        return row * rows + sending < n * row * rows
    rows = break_even(row, sending, n)
    assert faster(rows) and (rows == 1 or not faster(rows - 1))


class SlowRows(nn.Module):
    """Sleep for each row, in forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, X):
        """Return the scores, late."""
        time.sleep(LONG * len(X))
        return self.layer(X)


def test_one_device_takes_all_rows_two_ranks_half_of_them_and_a_row_its_time():
    one, two = scaling.ranks(SlowRows, [3], 2, count=1)
    assert one >= 4 * LONG and 2 * LONG <= two < one  # two sleeps against four
    row, sent = scaling.costs(SlowRows, [3], 1, count=1)
    assert 0.8 * LONG < row < 1.8 * LONG and 0 < sent < LONG
    assert len(scaling.threads(lambda: nn.Linear(3, 2), [3], 4, count=1)) == 2


def test_the_fewest_steps_are_of_the_best_rate_and_the_median_seed():
    runs = [{"batch_size": 8, "lr": lr, "steps": steps}
            for lr, seeds in ((0.1, (5, 9, 7)), (0.2, (3, 8, None)), (0.4, (1, None, None)))
            for steps in seeds]
    assert steps_to.fewest(runs) == {8: (7, 0.1)}


def test_what_is_stored_is_the_whole_grid_and_a_target_may_not_be_reached():
    stored = json.loads(STORED.read_text())
    assert {(run["batch_size"], run["lr"], run["seed"]) for run in stored["runs"]} == {
        (size, lr, seed) for size in steps_to.SIZES for lr in steps_to.RATES
        for seed in range(3)}
    assert stored["settings"] == {"target": steps_to.TARGET, "limit": steps_to.LIMIT}
    assert steps_to.steps_to(0.99, 4, 0.02, seed=0, limit=2) is None
