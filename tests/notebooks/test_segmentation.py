"""programs/segmentation.py: the images and the network of wrong_programs.py."""

import math

import pytest
import torch
from programs.segmentation import UNet, blobs, iou, overlap, pixel_loss
from torch import nn
from torch.nn import functional as F


def test_images_are_fractions_and_masks_are_zeros_and_ones():
    X, y = blobs(40)
    assert X.shape == y.shape == (40, 16, 16)
    assert X.dtype == torch.float64 and y.dtype == torch.int64
    assert 0 <= X.min() and X.max() <= 1
    assert y.unique().tolist() == [0, 1]


def by_floats(rows, seed, size):
    """Generate the same blobs in Python's floats, a pixel at a time."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.rand(rows, *shape, dtype=torch.float64, generator=generator)
        return values.tolist()

    def scale(value, low, high):
        return low + (high - low) * value

    grounds = [
        (grain, share, draw(size // grain + 1, size // grain + 1))
        for grain, share in ((8, 0.5), (4, 0.2), (1, 0.1))
    ]
    counts = draw()
    ellipses = [[draw() for _ in range(6)] for _ in range(3)]

    def pixel(n, row, column):
        value, inside = 0.0, False
        for grain, share, noise in grounds:
            i, j = column // grain, row // grain
            near, far = (
                here + (there - here) * (row % grain / grain)
                for here, there in (noise[n][i][j : j + 2], noise[n][i + 1][j : j + 2])
            )
            value += share * (near + (far - near) * (column % grain / grain))
        for x, y, tilt, along, across, light in ellipses[: int(1 + 3 * counts[n])]:
            dx = column - scale(x[n], 0.1, 0.9) * size
            dy = row - scale(y[n], 0.1, 0.9) * size
            half = scale(tilt[n], -1, 1)
            cos = (1 - half * half) / (1 + half * half)
            sin = 2 * half / (1 + half * half)
            u = (cos * dx + sin * dy) / (scale(along[n], 0.1, 0.24) * size)
            v = (cos * dy - sin * dx) / (scale(across[n], 0.1, 0.24) * size)
            d = u * u + v * v
            edge = d * d * d * d
            light = scale(light[n], 0.35, 0.7) / (1 + edge * edge)
            value += light * (1 - value)
            inside = inside or d <= 1
        return [value, int(inside)]

    return [
        [[pixel(n, row, column) for column in range(size)] for row in range(size)]
        for n in range(rows)
    ]


def test_every_bit_is_what_pythons_own_floats_give():
    # no sin, no exp, no sum in an order of the processor's choice: the stored runs were
    # made with these images, and another machine has the same ones
    X, y = blobs(6, seed=5)
    expected = by_floats(6, 5, 16)
    assert torch.stack([X, y.double()], dim=-1).tolist() == expected


def test_only_the_seed_decides():
    before = torch.get_rng_state()
    X, y = blobs(4, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    weights = UNet(generator=torch.Generator().manual_seed(3)).state_dict()
    torch.rand(3)  # somebody else draws
    again, other = blobs(4, seed=3), blobs(4, seed=4)
    assert torch.equal(again[0], X) and torch.equal(again[1], y)
    assert not torch.equal(other[0], X) and not torch.equal(other[1], y)
    same = UNet(generator=torch.Generator().manual_seed(3)).state_dict()
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def convs(X, block):
    for layer in block[::2]:
        X = F.relu(F.conv2d(X, layer.weight, layer.bias, padding=1))
    return X


def halved(X):
    """Return the largest of each 2 x 2 pixels."""
    n, c, h, w = X.shape
    return X.view(n, c, h // 2, 2, w // 2, 2).amax((3, 5))


def doubled(X, up):
    """Make 2 x 2 pixels of each one, by a matrix for each of the four places."""
    n, _, h, w = X.shape
    places = torch.einsum("ncij,cdab->ndiajb", X, up.weight)
    return places.reshape(n, -1, 2 * h, 2 * w) + up.bias.view(-1, 1, 1)


def test_a_unet_written_out():
    generator = torch.Generator().manual_seed(0)
    net = UNet(width=3, generator=generator).double()
    X = torch.rand(2, 1, 12, 8, dtype=torch.float64, generator=generator)
    first = convs(X, net.down[0])
    second = convs(halved(first), net.down[1])
    third = convs(halved(second), net.down[2])
    last = convs(torch.cat([second, doubled(third, net.up[1])], 1), net.merge[1])
    last = convs(torch.cat([first, doubled(last, net.up[0])], 1), net.merge[0])
    expected = torch.einsum("ncij,dcab->ndij", last, net.head.weight)
    expected = expected + net.head.bias.view(-1, 1, 1)
    assert expected.shape == (2, 2, 12, 8)
    torch.testing.assert_close(net(X), expected, rtol=0, atol=1e-13)


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
