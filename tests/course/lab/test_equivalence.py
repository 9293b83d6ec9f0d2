"""The two tests of "the same training" tell right from wrong, and say what they measure."""

import pytest
import torch

from course.lab.equivalence import apart, nudge, stepwise
from manual_dp import (
    allreduce,
    get_params,
    largest_difference,
    train_batch,
    try_devices,
)


def test_a_step_from_equal_weights_is_that_of_one_device_at_any_rate(batch, replicas):
    [params] = replicas(1)
    before = get_params(params, params[0].device)
    X, y = batch(10)
    assert stepwise(X, y, params, try_devices(3), lr=1.0, steps=10) <= 1e-12
    assert largest_difference(params, before) == 0


@pytest.mark.parametrize(
    "weight, other, wanted",
    [(0.5, 0.25, 0.25), (-1000.0, -1001.0, 1 / 1001)],
)
def test_a_distance_is_a_part_of_the_largest_weight_where_that_exceeds_1(
    weight, other, wanted
):
    params = [torch.tensor([weight, 0.0]), torch.tensor([[0.125]])]
    others = [torch.tensor([other, 0.0]), torch.tensor([[0.125]])]
    assert apart(params, others) == pytest.approx(wanted)


def no_sum(*step):
    train_batch(*step, lambda tensors: None)


def one_left_out(*step):
    train_batch(*step, lambda tensors: allreduce(tensors[:-1]))


def no_number(*step):
    train_batch(*step)
    step[2][0][3].data[0] = torch.nan


@pytest.mark.parametrize("wrong", [no_sum, one_left_out, no_number])
def test_a_wrong_step_after_a_right_one_is_seen(batch, replicas, wrong):
    [params], steps = replicas(1), iter([train_batch, wrong])

    def step(*given):
        next(steps)(*given)

    far = stepwise(*batch(6), params, try_devices(3), 0.1, 2, step)
    assert not far < 1e-3


@pytest.mark.parametrize(
    "numbers, moved", [([0.5, -2.0, 1.0], -2 - 2**-51), ([3.0, 0.25, -1.0], 3 + 2**-51)]
)
def test_a_nudge_moves_the_largest_weight_by_its_last_place(numbers, moved):
    params = [torch.tensor(numbers, dtype=torch.float64), torch.ones(2)]
    first, second = nudge(params)
    assert first.tolist() == [moved if abs(n) >= 2 else n for n in numbers]
    assert torch.equal(second, params[1]) and params[0].tolist() == numbers
