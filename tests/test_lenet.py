import importlib
import math

import pytest
import torch
from torch import nn

from manual_dp import init_params, lenet, loss

lenet_module = importlib.import_module("manual_dp.lenet")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def as_a_module(params):
    """Build the same network of torch's own layers, with the same weights."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    net = nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
                        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
                        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)).double()
    for p, value in zip(net.parameters(), [W1, b1, W2, b2, W3.t(), b3, W4.t(), b4]):
        p.data.copy_(value)
    return net


# init_params

def test_the_eight_tensors_have_the_books_shapes():
    shapes = [tuple(p.shape) for p in init_params()]
    assert shapes == [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),
                      (800, 128), (128,), (128, 10), (10,)]


@pytest.mark.parametrize("scale, stds", [
    ({}, [0.01] * 4),  # the book's
    ({"scale": 2}, [2.0] * 4),
    ({"scale": 0}, [0.0] * 4),
    ({"scale": "he"}, [math.sqrt(2 / fan_in) for fan_in in (1 * 3 * 3, 20 * 5 * 5, 800, 128)]),
])
def test_weights_spread_by_scale_and_biases_are_zero(scale, stds):
    params = init_params(**scale, generator=seeded(), dtype=torch.float64)
    for W, std in zip(params[::2], stds):
        # the mean of n squares strays from 1 by sqrt(2 / n): allow five times that
        spread = W.pow(2).mean().sqrt()
        assert abs(spread - std) <= 5 * std / math.sqrt(2 * W.numel())
    assert not any(b.any() for b in params[1::2])


def test_float32_and_float64_start_from_the_same_numbers():
    single, double = (init_params("he", seeded(), dtype)
                      for dtype in (torch.float32, torch.float64))
    assert all(p.dtype == torch.float32 for p in single)
    assert all(torch.equal(p, q.float()) for p, q in zip(single, double))


def test_a_generator_draws_the_same_weights_whatever_else_is_drawn():
    params = init_params("he", seeded())
    before = torch.get_rng_state()
    again = init_params("he", seeded())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(params, again))
    other = init_params("he", seeded(1))
    assert not any(torch.equal(p, q) for p, q in zip(params[::2], other[::2]))


def test_initial_weights_want_no_gradient():
    assert not any(p.requires_grad for p in init_params())


@pytest.mark.parametrize("scale", [-1, math.nan, math.inf, "xavier", None])
def test_refuses_a_scale_and_draws_nothing(scale):
    generator = seeded()
    before = generator.get_state()
    message = f'scale must be a finite number >= 0 or "he", got {scale!r}'
    with pytest.raises(ValueError, match=message):
        init_params(scale, generator)
    assert torch.equal(generator.get_state(), before)


# lenet

def test_scores_and_gradients_are_those_of_torchs_layers(batch):
    X, y = batch(6)
    params = [p.requires_grad_() for p in init_params("he", seeded(), torch.float64)]
    for b in params[1::2]:
        b.data.add_(torch.rand(b.shape, dtype=b.dtype, generator=seeded(1)))
    net = as_a_module(params)
    torch.testing.assert_close(lenet(X, params), net(X))
    loss(lenet(X, params), y).sum().backward()
    nn.CrossEntropyLoss(reduction="sum")(net(X), y).backward()
    for i, (p, q) in enumerate(zip(params, net.parameters())):
        torch.testing.assert_close(p.grad, q.grad.t() if i in (4, 6) else q.grad)


def test_an_image_alone_gets_the_scores_that_it_gets_in_a_minibatch(batch):
    X, _ = batch(3)
    params = init_params("he", seeded(), torch.float64)
    alone = torch.cat([lenet(X[i:i + 1], params) for i in range(3)])
    torch.testing.assert_close(lenet(X, params), alone)


def test_an_empty_shard_has_no_scores_and_a_zero_gradient(batch):
    X, y = batch(0)
    params = [p.requires_grad_() for p in init_params("he", seeded(), torch.float64)]
    y_hat = lenet(X, params)
    assert y_hat.shape == (0, 10)
    loss(y_hat, y).sum().backward()
    assert not any(p.grad.any() for p in params)


@pytest.mark.parametrize("shape", [(2, 1, 27, 27), (2, 1, 20, 20), (2, 3, 28, 28),
                                   (2, 28, 28), (28, 28), (2, 784), ()])
def test_refuses_images_of_another_shape(shape):
    named = str(tuple(shape)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=r"X must have shape \(n, 1, 28, 28\), "
                                         f"got {named}"):
        lenet(torch.rand(shape), init_params())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64,
                                   torch.float16])
def test_refuses_images_of_another_dtype(dtype):
    message = f"X is {dtype}, the parameters are torch.float32"
    with pytest.raises(TypeError, match=message):
        lenet(torch.zeros(2, 1, 28, 28, dtype=dtype), init_params())


@pytest.mark.parametrize("X, name", [([[0.0]], "list"), (None, "NoneType"),
                                     (torch.zeros(1).numpy(), "ndarray")])
def test_refuses_images_that_are_no_tensor(X, name):
    with pytest.raises(TypeError, match=f"X must be a tensor, got {name}"):
        lenet(X, init_params())


@pytest.mark.parametrize("count", [0, 7, 9])
def test_refuses_another_number_of_parameters(count):
    params = (init_params() * 2)[:count]
    with pytest.raises(ValueError, match=f"lenet needs 8 parameters, got {count}"):
        lenet(torch.rand(2, 1, 28, 28), params)


# loss

def test_scores_of_zero_cost_ln_10_an_example():
    losses = loss(torch.zeros(4, 10, dtype=torch.float64), torch.tensor([0, 3, 9, 9]))
    assert losses.tolist() == pytest.approx([math.log(10)] * 4, abs=1e-15)


def test_loss_by_hand():
    # softmax of [ln 1, ln 3] is [1/4, 3/4]
    y_hat = torch.tensor([[0.0, math.log(3)]] * 2, dtype=torch.float64)
    losses = loss(y_hat, torch.tensor([0, 1]))
    assert losses.tolist() == pytest.approx([math.log(4), math.log(4 / 3)])


def test_loss_is_the_books():
    y_hat = torch.rand(5, 10, dtype=torch.float64, generator=seeded())
    y = torch.tensor([1, 0, 9, 4, 4])
    assert torch.equal(loss(y_hat, y), nn.CrossEntropyLoss(reduction="none")(y_hat, y))


@pytest.mark.parametrize("label", [10, -1, -100])
def test_refuses_a_label_out_of_range_with_index_and_value(label):
    y = torch.tensor([3, 9, label, 11])
    message = rf"y\[2\] is {label}, not a label from 0 to 9"
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(4, 10), y)


@pytest.mark.parametrize("y", [torch.zeros(4), torch.zeros(4, dtype=torch.int32)])
def test_refuses_labels_of_another_dtype(y):
    with pytest.raises(TypeError, match=f"y must be int64 labels, got {y.dtype}"):
        loss(torch.zeros(4, 10), y)
    with pytest.raises(TypeError, match=f"y must be int64 labels, got {y.dtype}"):
        lenet_module.check_labels(y)


@pytest.mark.parametrize("scores, labels", [
    ((4, 10), (3,)),
    ((4, 10), (4, 10)),
    ((8, 1), (1, 8)),
    ((8,), (8,)),
    ((4, 10), ()),
])
def test_refuses_scores_and_labels_that_do_not_pair(scores, labels):
    with pytest.raises(ValueError, match=r"y_hat \(.*\) and y \(.*\) must be"):
        loss(torch.zeros(scores), torch.zeros(labels, dtype=torch.int64))


def test_scores_and_labels_are_never_broadcast():
    # where a squared error of (8, 1) and (8,) makes 64 numbers, with a warning
    with pytest.raises(ValueError, match=r"y_hat \(8, 1\) and y \(8, 1\)"):
        loss(torch.zeros(8, 1), torch.zeros(8, 1, dtype=torch.int64))


@pytest.mark.parametrize("y_hat, y, message", [
    ([[0.0]], torch.tensor([0]), "y_hat must be a tensor, got list"),
    (torch.zeros(1, 10), [0], "y must be a tensor, got list"),
])
def test_refuses_scores_or_labels_that_are_no_tensor(y_hat, y, message):
    with pytest.raises(TypeError, match=message):
        loss(y_hat, y)


def test_labels_run_from_0_to_9_unless_said_otherwise():
    y = torch.tensor([0, 9])
    lenet_module.check_labels(y)
    with pytest.raises(ValueError, match=r"y\[1\] is 10, not a label from 0 to 9"):
        lenet_module.check_labels(y + torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"y\[1\] is 9, not a label from 0 to 8"):
        lenet_module.check_labels(y, 9)


def test_labels_of_two_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"one label an example, got shape \(4, 1\)"):
        lenet_module.check_labels(torch.zeros(4, 1, dtype=torch.int64))


def test_labels_on_another_device_are_not_read():
    # a meta tensor cannot be read at all, as a GPU's should not be: the host would wait
    y_hat, y = torch.zeros(4, 10, device="meta"), torch.zeros(4, device="meta").long()
    assert loss(y_hat, y).shape == (4,)
