"""LeNet on raw tensors equals torch's layers, and names what it does not take."""

import math
import re

import pytest
import torch
from torch import nn

from manual_dp import init_params, lenet, loss


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def zeros(*shape):
    """Return labels of this shape."""
    return torch.zeros(shape, dtype=torch.int64)


def as_a_module(params):
    """Build the same network of torch's own layers, with the same weights."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ).double()
    for p, value in zip(net.parameters(), [W1, b1, W2, b2, W3.t(), b3, W4.t(), b4]):
        p.data.copy_(value)
    return net


# init_params


@pytest.mark.parametrize(
    "scale, stds",
    [
        ({}, [0.01] * 4),  # the book's
        ({"scale": 0}, [0.0] * 4),
        (
            {"scale": "he"},
            [math.sqrt(2 / fan_in) for fan_in in (1 * 3 * 3, 20 * 5 * 5, 800, 128)],
        ),
    ],
)
def test_weights_have_the_books_shapes_and_spread_by_scale(scale, stds):
    params = init_params(**scale, generator=seeded(), dtype=torch.float64)
    assert [tuple(p.shape) for p in params] == [
        (20, 1, 3, 3),
        (20,),
        (50, 20, 5, 5),
        (50,),
        (800, 128),
        (128,),
        (128, 10),
        (10,),
    ]
    for W, std in zip(params[::2], stds):
        # the mean of n squares strays from 1 by sqrt(2 / n): allow five times that
        spread = W.pow(2).mean().sqrt()
        assert abs(spread - std) <= 5 * std / math.sqrt(2 * W.numel())
    assert not any(b.any() for b in params[1::2])
    assert not any(p.requires_grad for p in params)


def test_the_generator_alone_decides_the_numbers_in_any_dtype():
    double = init_params("he", seeded(), torch.float64)
    before = torch.get_rng_state()
    single = init_params("he", seeded())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.dtype == torch.float32 for p in single)
    assert all(torch.equal(p, q.float()) for p, q in zip(single, double))
    other = init_params("he", seeded(1))
    assert not any(torch.equal(p, q) for p, q in zip(single[::2], other[::2]))


@pytest.mark.parametrize("scale", [-1, math.nan, math.inf, "xavier"])
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
    alone = torch.cat([lenet(X[i : i + 1], params) for i in range(6)])
    torch.testing.assert_close(lenet(X, params), alone)
    loss(lenet(X, params), y).sum().backward()
    nn.CrossEntropyLoss(reduction="sum")(net(X), y).backward()
    for i, (p, q) in enumerate(zip(params, net.parameters())):
        torch.testing.assert_close(p.grad, q.grad.t() if i in (4, 6) else q.grad)


IMAGES = torch.zeros(2, 1, 28, 28)


@pytest.mark.parametrize(
    "X, count, error, message",
    [
        *[
            (
                torch.zeros(shape),
                8,
                ValueError,
                re.escape(f"X must have shape (n, 1, 28, 28), got {shape}"),
            )
            for shape in [(2, 1, 27, 27), (2, 3, 28, 28), (1, 28, 28)]
        ],
        *[
            (
                IMAGES.to(dtype),
                8,
                TypeError,
                f"X is {dtype}, the parameters are torch.float32",
            )
            for dtype in [torch.float64]
        ],
        *[
            (IMAGES, count, ValueError, f"lenet needs 8 parameters, got {count}")
            for count in [7, 9]
        ],
        ([[0.0]], 8, TypeError, "X must be a tensor, got list"),
    ],
)
def test_refuses_images_or_parameters(X, count, error, message):
    with pytest.raises(error, match=message):
        lenet(X, (init_params() * 2)[:count])


# loss


def test_loss_by_hand():
    # softmax of [ln 1, ln 3] is [1/4, 3/4]; ten scores of zero cost ln 10
    y_hat = torch.tensor([[0.0, math.log(3)]] * 2, dtype=torch.float64)
    assert loss(y_hat, torch.tensor([0, 1])).tolist() == pytest.approx(
        [math.log(4), math.log(4 / 3)]
    )
    assert loss(torch.zeros(3, 10), torch.tensor([0, 3, 9])).tolist() == pytest.approx(
        [math.log(10)] * 3
    )


@pytest.mark.parametrize(
    "y_hat, y, error, message",
    [
        *[
            (
                torch.zeros(4, 10),
                torch.tensor([3, 9, label, 11]),
                ValueError,
                rf"y\[2\] is {label}, not a label from 0 to 9",
            )
            for label in (10, -1)
        ],
        (
            torch.zeros(4, 9),
            torch.tensor([8, 9, 0, 0]),
            ValueError,
            r"y\[1\] is 9, not a label from 0 to 8",
        ),
        (
            torch.zeros(4, 10),
            zeros(4).int(),
            TypeError,
            "y must be int64 labels, got .*int32",
        ),
        # where a squared error of (8, 1) and (8,) makes 64 numbers, with a warning
        *[
            (
                torch.zeros(scores),
                zeros(*labels),
                ValueError,
                re.escape(
                    f"y_hat {scores} and y {labels} must be (n, classes) and (n,)"
                ),
            )
            for scores, labels in [
                ((4, 10), (3,)),
                ((8, 1), (8, 1)),
                ((8,), (8,)),
            ]
        ],
        ([[0.0]], zeros(1), TypeError, "y_hat must be a tensor, got list"),
        (torch.zeros(1, 10), [0], TypeError, "y must be a tensor, got list"),
    ],
)
def test_refuses_scores_or_labels(y_hat, y, error, message):
    with pytest.raises(error, match=message):
        loss(y_hat, y)


def test_labels_on_another_device_are_not_read():
    # a meta tensor cannot be read at all, as a GPU's should not be: the host would wait
    y_hat, y = torch.zeros(4, 10, device="meta"), zeros(4).to("meta")
    assert loss(y_hat, y).shape == (4,)
