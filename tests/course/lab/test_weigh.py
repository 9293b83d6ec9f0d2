import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course.lab.weigh import (
    forward_flops,
    gradient_bytes,
    keep,
    most_kept,
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


# what is kept for backward

def layers():
    """Return two layers without bias, 4 x 4, and six rows for them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(),
                         nn.Linear(4, 4, bias=False)), torch.rand(6, 4)


def test_each_layer_keeps_what_its_backward_needs_but_what_is_named():
    net, X = layers()
    # the first layer keeps its input; tanh its output, which the second keeps as well
    assert keep(lambda: net(X), net.parameters()) == [((6, 4), torch.float32, 96)] * 2
    assert len(keep(lambda: net(X), [X, *net.parameters()])) == 1
    # the first layer's weight is kept only for the gradient of X, which nobody wants
    assert [k.shape for k in keep(lambda: net(X))] == [(6, 4), (6, 4), (4, 4)]
    with torch.no_grad():
        assert keep(lambda: net(X)) == [] and most_kept(lambda: net(X)) == 0


def test_two_names_of_one_memory_count_once_and_a_view_keeps_all_of_it():
    w, X = torch.rand(5, requires_grad=True), torch.rand(5)
    assert keep(lambda: (w * X + w * X.view(5), w)) == [((5,), torch.float32, 20)]
    assert [k.size for k in keep(lambda: w[:2] * torch.rand(100)[:2], [w])] == [400]


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_backward_lets_go_and_a_result_that_is_dropped_too(parts):
    net, X = layers()
    besides = [X, *net.parameters()]

    def accumulate():
        for part in X.chunk(parts):
            net(part).sum().backward()

    def forget():
        for part in X.chunk(parts):
            net(part)
    assert most_kept(forget, besides) == 96 // parts
    assert most_kept(accumulate, besides) == 96 // parts
    # two layers hold one memory: it is let go of once
    assert most_kept(lambda: [net(part).sum().backward() for part in (X[:1], X)],
                     besides) == 96
    assert most_kept(lambda: sum(net(part).sum() for part in X.chunk(parts)).backward(),
                     besides) == 96


def test_what_a_checkpoint_computes_again_is_not_seen_and_gradients_are_as_ever():
    net, X = layers()
    net(X).sum().backward()
    right = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    most_kept(lambda: net(X).sum().backward())
    assert all(map(torch.equal, right, (p.grad for p in net.parameters())))
    assert most_kept(lambda: checkpoint(net, X, use_reentrant=False).sum().backward(),
                     [X, *net.parameters()]) == 0
