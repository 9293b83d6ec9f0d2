import pytest
import torch

from manual_dp.lab.compare import largest_difference


def test_the_largest_difference_by_hand():
    params = [torch.tensor([1.0, 2.0]), torch.tensor([[5.0], [-3.0]])]
    others = [torch.tensor([1.0, 2.5]), torch.tensor([[5.25], [-5.0]])]
    assert largest_difference(params, others) == 2.0
    assert largest_difference(others, params) == 2.0
    assert largest_difference(params, params) == 0.0


def test_leaves_that_want_gradients_are_compared_outside_the_graph(replicas):
    first, second = replicas(2)
    second[7].data[3] += 0.5
    difference = largest_difference(first, second)
    assert isinstance(difference, float) and difference == 0.5


def test_a_parameter_too_few_is_no_agreement(replicas):
    [params] = replicas(1)
    with pytest.raises(ValueError, match="shorter"):
        largest_difference(params, params[:7])
