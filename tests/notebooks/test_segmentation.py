"""programs/segmentation.py: the images and the network of wrong_programs.py."""

import hashlib
import math

import pytest
import torch
from programs.segmentation import UNet, blobs, iou, overlap, pixel_loss
from torch import nn
from torch.nn import functional as F


def test_every_bit_is_the_one_that_the_stored_runs_were_made_with():
    # no sin, no exp, no sum in an order of the processor's choice: so another machine
    # has the same images
    before = torch.get_rng_state()
    X, y = blobs(6, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert X.shape == y.shape == (6, 16, 16)
    assert X.dtype == torch.float64 and y.dtype == torch.int64
    found = [hashlib.sha256(part.numpy().tobytes()).hexdigest()[:16] for part in (X, y)]
    assert found == ["e10fd0eaf3ac71d4", "a2683a8da9c19c12"]


def test_the_generator_alone_decides_the_weights():
    weights, same = (
        UNet(generator=torch.Generator().manual_seed(3)).state_dict() for _ in range(2)
    )
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_a_unet_written_out():
    net = UNet(width=3).double()
    X = torch.rand(2, 1, 12, 8, dtype=torch.float64)
    first = net.down[0](X)
    second = net.down[1](F.max_pool2d(first, 2))
    third = net.down[2](F.max_pool2d(second, 2))
    last = net.merge[1](torch.cat([second, net.up[1](third)], 1))
    last = net.merge[0](torch.cat([first, net.up[0](last)], 1))
    expected = net.head(last)
    assert expected.shape == (2, 2, 12, 8) and torch.equal(net(X), expected)


@pytest.mark.parametrize(
    "norm, kind",
    [("batch", nn.BatchNorm2d), (lambda c: nn.GroupNorm(1, c), nn.GroupNorm)],
)
def test_a_norm_stands_between_each_convolution_and_its_relu(norm, kind):
    net = UNet(norm=norm)
    for block in [*net.down, *net.merge]:
        assert [type(layer) for layer in block] == 2 * [nn.Conv2d, kind, nn.ReLU]
        assert block[0].bias is None and block[3].bias is None
    net(torch.rand(4, 1, 8, 8)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in net.parameters())


def test_pixel_loss_by_hand():
    # the scores ln 3 and 0 are odds of 3 to 1: a pixel costs ln(4/3) or ln 4
    y_hat = torch.zeros(2, 2, 1, 2, dtype=torch.float64)
    y_hat[:, 0] = math.log(3)
    y = torch.tensor([[[0, 0]], [[0, 1]]])
    expected = [2 * math.log(4 / 3), math.log(4 / 3) + math.log(4)]
    assert pixel_loss(y_hat, y).tolist() == pytest.approx(expected, abs=1e-15)


def test_pixels_are_counted_by_class_and_scored():
    y = torch.tensor([[[0, 1, 1], [2, 2, 2]]])
    found = torch.tensor([[[0, 0, 1], [2, 1, 1]]])
    y_hat = F.one_hot(found, 4).movedim(-1, 1).double()
    counts = overlap(y_hat, y)
    assert counts.tolist() == [[1, 1, 1, 0], [2, 3, 1, 0], [1, 2, 3, 0]]
    assert iou(counts)[:3].tolist() == [1 / 2, 1 / 4, 1 / 3]
    assert iou(counts)[3].isnan()  # a class in no mask
