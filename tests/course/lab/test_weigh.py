import pytest
import torch
from torch import nn

from course.lab.weigh import (
    forward_flops,
    gradient_bytes,
    operations,
    per_byte,
    shapes,
    step_flops,
)
from manual_dp.models.stems import build


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(),
                         nn.Linear(4 * 8 * 8, 5))


def test_operations_counted_by_hand():
    net, shape = small(), (3, 8, 8)
    convolution, linear = 2 * 8 * 8 * 4 * 3 * 9, 2 * 4 * 8 * 8 * 5
    assert forward_flops(net, shape) == convolution + linear
    # backward: the weights' gradient and the inputs', but not that of the images
    assert step_flops(net, 2, shape) == 2 * (2 * convolution + 3 * linear)
    numbers = 4 * 3 * 9 + 4 + 4 * 8 * 8 * 5 + 5
    assert gradient_bytes(net) == 4 * numbers
    assert gradient_bytes(net.double()) == 8 * numbers
    assert per_byte(net, 2, shape) == 2 * (2 * convolution + 3 * linear) / 8 / numbers


def test_weights_that_want_no_gradient_are_not_sent():
    net = small()
    net[0].requires_grad_(False)
    assert gradient_bytes(net) == 4 * (4 * 8 * 8 * 5 + 5)


def test_the_network_stays_as_it_was():
    net = small().train()
    before = [p.detach().clone() for p in net.parameters()]
    step_flops(net, 2, (3, 8, 8))
    shapes(net, ["0"], shape=(3, 8, 8))
    assert net.training and all(p.grad is None for p in net.parameters())
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before))
    assert not net[0]._forward_hooks


@pytest.mark.parametrize("stem, size, giga", [
    ("torchvision", 32, 0.167), ("torchvision", 224, 8.174), ("cifar", 32, 2.596)])
def test_resnet50s_operations(stem, size, giga):
    assert round(forward_flops(build("resnet50", stem), (3, size, size)) / 1e9, 3) == giga


def test_the_stem_decides_what_the_last_block_sees():
    assert shapes(build("resnet50"), ["layer1", "layer4"], rows=2) == {
        "layer1": (2, 256, 8, 8), "layer4": (2, 2048, 1, 1)}
    assert shapes(build("resnet50", "cifar"), ["layer4"])["layer4"] == (1, 2048, 4, 4)
    assert gradient_bytes(build("resnet50")) == 4 * 23_528_522


def test_operations_are_counted_but_not_views():
    X = torch.ones(2, 3)
    assert operations(lambda: None) == 0
    assert operations(lambda: X.view(6).t().split(2)) == 0
    assert operations(lambda: X.exp()) == 1
    assert operations(lambda: X.view(6).add_(1).sum()) == 2


def test_operations_of_backward_count_too():
    X = torch.ones(3, requires_grad=True)
    forward = operations(lambda: X.exp().sum())
    both = operations(lambda: X.exp().sum().backward())
    # and back: a one to start from, and ones times exp(X); expanding it is a view
    assert (forward, both) == (2, 4)
