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


@pytest.mark.parametrize("world_size, rows", [(1, 4), (3, 10), (8, 3)])
@pytest.mark.parametrize("lr", [0.01, 1.0])
def test_a_step_from_equal_weights_is_that_of_one_device_at_any_rate(
    batch, replicas, world_size, rows, lr
):
    [params] = replicas(1)
    before = get_params(params, params[0].device)
    X, y = batch(rows)
    assert stepwise(X, y, params, try_devices(world_size), lr, steps=10) <= 1e-12
    assert largest_difference(params, before) == 0


@pytest.mark.parametrize(
    "weight, other, wanted",
    [(0.5, 0.25, 0.25), (1.0, 1.5, 1 / 3), (-1000.0, -1001.0, 1 / 1001)],
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
@pytest.mark.parametrize("first", [1, 5])
def test_a_wrong_step_is_seen_whichever_it_is(batch, replicas, wrong, first):
    [params], steps = replicas(1), [train_batch] * (first - 1) + [wrong]
    far = stepwise(
        *batch(6), params, try_devices(3), 0.1, first, lambda *step: steps.pop(0)(*step)
    )
    assert not far < 1e-3


@pytest.mark.parametrize(
    "numbers, moved", [([0.5, -2.0, 1.0], -2 - 2**-51), ([0.25, 3.0, -1.0], 3 + 2**-51)]
)
def test_a_nudge_moves_the_largest_weight_by_its_last_place(numbers, moved):
    params = [torch.tensor(numbers, dtype=torch.float64), torch.ones(2)]
    first, second = nudge(params)
    assert first.tolist() == [moved if abs(n) >= 2 else n for n in numbers]
    assert torch.equal(second, params[1]) and params[0].tolist() == numbers
