"""Images for LeNet, and the watch on which of them go through which weights."""

import pytest
import torch
from torch.nn import functional as F

from manual_dp.lenet import init_params, lenet
from manual_dp.school.tools.images import images, rows_seen, together, watched


def test_images_are_distinct_and_the_same_for_the_same_seed():
    X, y = images(3, 5)
    assert (X.shape, X.dtype, y.shape) == ((5, 1, 28, 28), torch.float64, (5,))
    assert X.unique().numel() == X.numel() and set(y.tolist()) <= set(range(10))
    assert torch.equal(X, images(3, 5)[0]) and not torch.equal(X, images(4, 5)[0])


def test_each_call_is_noted_with_its_weights_and_first_pixels():
    X, params = images(0, 5)[0], init_params("he", dtype=torch.float64)
    other = [p.clone() for p in params]
    with watched() as calls:
        lenet(X[:3], params)
        lenet(X[3:], other)
        lenet(X[:0], params)  # no rows, no note
    lenet(X, params)  # no longer
    first = X[:, 0, 0, 0].tolist()
    assert calls == [(params[0].data_ptr(), first[:3], True, True),
                     (other[0].data_ptr(), first[3:], True, True)]
    assert rows_seen(calls, [params], X) == [[0, 1, 2], [3, 4]]


def test_a_call_without_gradients_is_noted_as_such():
    X, params = images(0, 2)[0], init_params("he", dtype=torch.float64)
    with watched() as calls, torch.no_grad():
        lenet(X, params)
    assert [call.gradients for call in calls] == [False]


@pytest.mark.parametrize("form, met", [
    (lambda X, device: X.to(device), "yes"), (lambda X, device: X, "no"),
    (lambda X, device: X.to(device).item(), "yes")])  # cannot be told: it fails before
def test_images_and_weights_meet_on_one_device_or_not(form, met):
    def work(X, y, replicas, devices):
        torch.set_grad_enabled(False)
        lenet(form(X, devices[0]), replicas[0])
    assert together(work, init_params("he", dtype=torch.float64)) == met
    assert torch.is_grad_enabled()


def test_the_watch_ends_with_the_block_also_after_an_error():
    before = F.conv2d
    with pytest.raises(KeyError), watched():
        raise KeyError
    assert F.conv2d is before
