"""What is measured, with networks that sleep: so it is certain which side is longer."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course.lab.scaling import measure

LONG = 0.2  # seconds that a row takes, or a message


class SlowRows(nn.Module):
    """Sleep for each row, in forward."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.layer = seconds, nn.Linear(3, 2)

    def forward(self, X):
        """Return the scores, late."""
        time.sleep(self.seconds * len(X))
        return self.layer(X)


def test_one_device_takes_all_rows_and_two_ranks_half_of_them_each():
    one, two = measure.ranks(lambda: SlowRows(LONG), [3], 2, count=1)
    assert one >= 4 * LONG and 2 * LONG <= two
    assert two < one  # two sleeps against four


def test_the_cost_of_a_row_is_what_three_times_as_many_rows_add():
    row, sent = measure.costs(lambda: SlowRows(LONG), [3], 1, count=2)
    assert 0.5 * LONG < row < 3 * LONG
    assert 0 < sent < LONG


def test_a_rank_steps_with_each_number_of_threads():
    seen = []

    class Asks(nn.Linear):
        def forward(self, X):
            seen.append(torch.get_num_threads())
            return super().forward(X)

    def step_of(count):
        sides = measure._one_thread_two(lambda: Asks(3, 2), [3], 4)
        sides[count - 1]()
        return seen[-1]
    before = torch.get_num_threads()
    try:
        assert [step_of(1), step_of(2)] == [1, 2]
    finally:
        torch.set_num_threads(before)
    assert len(measure.threads(lambda: nn.Linear(3, 2), [3], 4, count=1)) == 2


def test_only_rank_0_steps_alone_and_gradients_are_averaged_together():
    from manual_dp.ranks import run_ranks

    def rank_function():
        torch.manual_seed(dist.get_rank())
        made = []

        def make():
            made.append(nn.Linear(3, 2))
            return made[-1]
        alone, together = measure._alone_together(make, [3], 2)
        start = made[0].weight.tolist()
        alone()
        together()
        return start != made[0].weight.tolist(), made[1].weight.tolist()
    (first, weights), (second, others) = run_ranks(rank_function, 2)
    assert weights == others and first and not second


@pytest.mark.parametrize("seconds, expected", [
    ({1: (2, 3), 2: (4, 4), 4: (8, 6), 8: (16, 10)}, 4),
    ({1: (2, 1), 2: (4, 5), 4: (8, 6)}, 4),  # one that was faster by chance
    ({1: (2, 1), 2: (4, 2)}, 1), ({1: (2, 3), 2: (4, 5)}, None),
    ({8: (16, 10), 1: (2, 3)}, 8)])
def test_the_turning_is_where_two_ranks_become_faster_and_stay_so(seconds, expected):
    assert measure.turning(seconds) == expected
