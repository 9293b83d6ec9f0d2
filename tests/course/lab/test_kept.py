import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course.lab import kept


def layers():
    """Return two layers without bias, 4 x 4, and six rows for them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(),
                         nn.Linear(4, 4, bias=False)), torch.rand(6, 4)


def test_each_layer_keeps_what_its_backward_needs():
    net, X = layers()
    found = kept.keep(lambda: net(X), net.parameters())
    # the first layer keeps its input; tanh its output, which the second keeps as well
    assert found == [((6, 4), torch.float32, 96)] * 2


def test_what_is_there_in_any_case_is_left_out_where_it_is_named():
    net, X = layers()
    assert len(kept.keep(lambda: net(X), [X, *net.parameters()])) == 1
    # the first layer's weight is kept only for the gradient of X, which nobody wants
    assert [k.shape for k in kept.keep(lambda: net(X))] == [(6, 4), (6, 4), (4, 4)]


def test_two_names_of_one_memory_count_once():
    w = torch.rand(5, requires_grad=True)
    X = torch.rand(5)
    assert kept.keep(lambda: (w * X + w * X.view(5), w)) == [((5,), torch.float32, 20)]


def test_a_view_keeps_all_the_memory_that_it_shows_a_part_of():
    w, X = torch.rand(2, requires_grad=True), torch.rand(100)
    assert [k.size for k in kept.keep(lambda: w * X[:2])] == [400]


def test_without_gradients_nothing_is_kept():
    net, X = layers()
    with torch.no_grad():
        assert kept.keep(lambda: net(X)) == []
        assert kept.most_kept(lambda: net(X)) == 0


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_backward_lets_go_so_only_one_part_is_kept_at_a_time(parts):
    net, X = layers()

    def accumulate():
        for part in X.chunk(parts):
            net(part).sum().backward()
    assert kept.most_kept(accumulate, [X, *net.parameters()]) == 96 // parts


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_all_parts_are_kept_until_one_backward_for_all(parts):
    net, X = layers()

    def sum_first():
        sum(net(part).sum() for part in X.chunk(parts)).backward()
    assert kept.most_kept(sum_first, [X, *net.parameters()]) == 96


def test_a_result_that_is_dropped_is_let_go_of_without_a_backward():
    net, X = layers()

    def forget():
        for _ in range(3):
            net(X)
    assert kept.most_kept(forget, [X, *net.parameters()]) == 96


def test_what_a_checkpoint_computes_again_is_not_seen():
    net, X = layers()

    def again():
        checkpoint(net, X, use_reentrant=False).sum().backward()
    assert kept.most_kept(again, [X, *net.parameters()]) == 0


def test_sixteen_bits_are_half_the_bytes_and_a_copy_of_the_weights():
    net, X = layers()

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return net(X)
    shapes = [(k.shape, k.dtype, k.size) for k in kept.keep(forward,
                                                            [X, *net.parameters()])]
    assert ((6, 4), torch.bfloat16, 48) in shapes
    assert ((4, 4), torch.bfloat16, 32) in shapes  # the second layer's weight


def test_gradients_are_those_of_a_run_that_nobody_counts():
    net, X = layers()
    net(X).sum().backward()
    right = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    kept.most_kept(lambda: net(X).sum().backward())
    assert all(map(torch.equal, right, (p.grad for p in net.parameters())))
