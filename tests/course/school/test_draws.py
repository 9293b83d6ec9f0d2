"""Numbers that are drawn, the watch on LeNet, and what is said of sums and devices."""

import random

import pytest
import torch
from torch.nn import functional as F

from course.school.draws import (
    META,
    calls_of_lenet,
    images,
    moved,
    rand,
    rows_seen,
    summed,
    tensors,
    together,
)
from manual_dp import init_params, lenet


def test_numbers_are_distinct_of_both_signs_and_follow_the_generator_alone():
    drawn = rand(random.Random(7), 3, 4)
    assert drawn.dtype == torch.float64 and drawn.unique().numel() == 12
    assert -1 <= drawn.min() < 0 < drawn.max() <= 1
    assert torch.equal(drawn, rand(random.Random(7), 3, 4))
    assert not torch.equal(drawn, rand(random.Random(8), 3, 4))
    assert rand(random.Random(0)).shape == () and rand(random.Random(0), 0).numel() == 0


@pytest.mark.parametrize(
    "value, message",
    [
        (torch.ones(2), "f must return a list of tensors, got Tensor"),
        ([torch.ones(1), 2.0], r"f returned a float at \[1\], not a tensor"),
        ([torch.ones(1)], "f returned 1 tensors, not 2"),
    ],
)
def test_what_is_no_list_of_so_many_tensors_is_refused(value, message):
    with pytest.raises(TypeError, match=message):
        tensors(value, 2, "f")


def test_each_call_of_lenet_is_noted_with_its_weights_first_pixels_and_gradients():
    X, params = images(random.Random(0), 5)[0], init_params("he", dtype=torch.float64)
    other, before = [p.clone() for p in params], F.conv2d
    with calls_of_lenet() as calls:
        lenet(X[:3], params)
        with torch.no_grad():
            lenet(X[3:], other)
        lenet(X[:0], params)  # no rows, no note
    lenet(X, params)  # no longer
    pixels = X[:, 0, 0, 0].tolist()
    assert calls == [
        (params[0].data_ptr(), pixels[:3], True, True),
        (other[0].data_ptr(), pixels[3:], False, True),
    ]
    assert rows_seen(calls, [params], X) == [[0, 1, 2], [3, 4]] and F.conv2d is before


def test_what_vmap_hands_over_is_not_known():
    X, params = images(random.Random(0), 2)[0], init_params("he", dtype=torch.float64)
    with calls_of_lenet() as calls:
        torch.func.vmap(lambda image: lenet(image[None], params))(X)
    assert rows_seen(calls, [params], X) is None


def test_whose_weights_torch_func_works_with_is_not_known():
    X, params = images(random.Random(0), 2)[0], init_params("he", dtype=torch.float64)
    with calls_of_lenet() as calls:
        torch.func.grad(lambda params: lenet(X, params).sum())(params)
    assert [call.address for call in calls] == [None]
    assert rows_seen(calls, [params], X) is None


@pytest.mark.parametrize(
    "form, met",
    [
        (lambda X, device: X, False),
        (lambda X, device: X.to(device).item(), True),
    ],
)  # cannot be told: it fails before
def test_images_and_weights_meet_on_one_device_or_not(form, met):
    def work(X, y, replicas, devices):
        torch.set_grad_enabled(False)
        lenet(form(X, devices[0]), replicas[0])

    params = init_params("he", dtype=torch.float64)
    assert (together(work, params, random.Random(0)) is None) == met
    assert torch.is_grad_enabled()


def test_images_that_all_come_to_the_first_device_do_not_meet_their_weights():
    def work(X, y, replicas, devices):
        for part, params in zip(X.to(devices[0]).chunk(2), replicas):
            lenet(part, params)

    assert together(work, init_params("he", dtype=torch.float64), random.Random(0))


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda device: [torch.ones(1, device=device)], None),
        (lambda device: [3], "got     [no device]"),
        (lambda device: torch.ones(2, device=device).tolist(), None),
    ],
)  # cannot be told
def test_tensors_come_to_their_device_or_not(answer, said):
    message = moved(answer, [META], ["meta"], "to(device)")
    assert (message is None) if said is None else said in message


HELD = [[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]
TOTAL = [111.0, 222.0]


@pytest.mark.parametrize(
    "after, hint",
    [
        ([TOTAL] * 3, None),
        (
            [[121.0, 242.0]] * 3,
            "the tensor on rank 0 holds rank 0's + rank 1's twice "
            "+ rank 2's; every rank belongs in it once",
        ),
        ([[0.0, 0.0]] * 3, "the tensor on rank 0 holds zeros"),
    ],
)
def test_it_is_told_whose_numbers_stand_where_the_sum_should(after, hint):
    messages = summed([torch.tensor(row) for row in HELD], after)
    message = next(filter(None, messages), None)
    assert (message is None) == (hint is None)
    assert hint is None or message.partition("\nperhaps ")[2].startswith(hint)
