"""Where torch would draw, each number is the same one, whatever the size."""

import pytest
import torch

from manual_dp.audit.exact import DRAWS
from manual_dp.audit.fixed import DRAWN, PART, fixed

HALF = torch.tensor([0.2, 0.7])


def instead(function, *args, **kwargs):
    return fixed(function.__name__, function(*args, **kwargs), args, kwargs)


@pytest.mark.parametrize("call, numbers", [
    ((torch.rand, 2), [PART] * 2), ((torch.randn, 2), [PART] * 2),
    ((torch.rand_like, HALF), [PART] * 2), ((torch.randperm, 3), [0, 1, 2]),
    ((torch.Tensor.uniform_, torch.zeros(2), 1, 3), [1 + 2 * PART] * 2),
    ((torch.Tensor.normal_, torch.zeros(1), 2, 5), [2 + 5 * PART]),
    ((torch.normal, HALF, torch.ones(2)), [0.2 + PART, 0.7 + PART]),
    ((torch.normal, HALF, 2), [0.2 + 2 * PART, 0.7 + 2 * PART]),
    ((torch.randint, 10, (2,)), [3, 3]), ((torch.randint, 10, 20, (2,)), [13, 13]),
    ((torch.randint_like, torch.zeros(2), 10, 20), [13, 13]),
    ((torch.bernoulli, HALF), [0, 1]), ((torch.Tensor.bernoulli_, torch.ones(2), 0.4), [0, 0]),
    ((torch.Tensor.bernoulli_, torch.ones(2), HALF), [0, 1]),
    ((torch.multinomial, torch.tensor([[0.1, 0.6, 0.3]]), 2), [1, 2]),
    ((torch.Tensor.exponential_, torch.zeros(2)), [1, 1]),
    ((torch.Tensor.random_, torch.zeros(2)), [1, 1])])
def test_what_is_given(call, numbers):
    function, *args = call
    made = instead(function, *args)
    torch.testing.assert_close(made.flatten(), torch.tensor(numbers), check_dtype=False)


def test_bounds_may_be_named():
    assert instead(torch.randint, low=2, high=12, size=(1,)).tolist() == [5]
    assert instead(torch.randint, high=10, size=(1,)).tolist() == [3]
    assert instead(torch.Tensor.uniform_, torch.zeros(1), to=2).tolist() == pytest.approx(
        [2 * PART])


def test_what_is_not_known_is_left_as_it_was_drawn():
    assert instead(torch.Tensor.cauchy_, torch.zeros(2)) is None
    assert fixed("rand", None, (2,), {}) is None
    weight = torch.zeros(2, requires_grad=True)
    assert fixed("rand", weight, (2,), {}) is None


def test_each_name_is_one_that_draws():
    assert {*DRAWN} <= DRAWS
