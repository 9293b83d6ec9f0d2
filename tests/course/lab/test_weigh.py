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
                         nn.Linear(4 * 8 * 8, 5)).train()


def test_operations_counted_by_hand_and_the_network_stays_as_it_was():
    net, shape = small(), (3, 8, 8)
    before = [p.detach().clone() for p in net.parameters()]
    convolution, linear = 2 * 8 * 8 * 4 * 3 * 9, 2 * 4 * 8 * 8 * 5
    assert forward_flops(net, shape) == convolution + linear
    # backward: the weights' gradient and the inputs', but not that of the images
    assert step_flops(net, 2, shape) == 2 * (2 * convolution + 3 * linear)
    numbers = 4 * 3 * 9 + 4 + 4 * 8 * 8 * 5 + 5
    assert gradient_bytes(net) == 4 * numbers
    assert per_byte(net, 2, shape) == 2 * (2 * convolution + 3 * linear) / 4 / numbers
    assert net.training and not net[0]._forward_hooks
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before))
    net[0].requires_grad_(False)  # weights that want no gradient are not sent
    assert gradient_bytes(net.double()) == 8 * (4 * 8 * 8 * 5 + 5)


@pytest.mark.parametrize("stem, size, giga", [
    ("torchvision", 224, 8.174), ("cifar", 32, 2.596)])
def test_resnet50s_operations_and_what_its_last_block_sees(stem, size, giga):
    found = shapes(build("resnet50", stem), ["layer4"], rows=2, shape=(3, size, size))
    assert found == {"layer4": (2, 2048, 7, 7) if size == 224 else (2, 2048, 4, 4)}
    assert round(forward_flops(build("resnet50", stem), (3, size, size)) / 1e9, 3) == giga


def test_operations_are_counted_but_not_views():
    X, p = torch.ones(2, 3), torch.ones(3, requires_grad=True)
    assert operations(lambda: X.view(6).t().split(2)) == 0
    assert operations(lambda: X.view(6).add_(1).sum()) == 2
    # and back: a one to start from, and ones times exp(p); expanding it is a view
    assert operations(lambda: p.exp().sum().backward()) == 4
