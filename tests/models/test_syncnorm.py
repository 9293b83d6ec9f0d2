import pytest
import torch
import torch.distributed as dist
from torch import nn

from manual_dp.models.syncnorm import SyncNorm, sum_over_ranks, synchronise
from manual_dp.ranks import run_ranks


def images(rows):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, 3, 4, 5, dtype=torch.float64, generator=generator)


def made():
    norm = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, -3.0]))
        norm.bias.copy_(torch.tensor([0.5, 0.0, 1.0]))
    return norm


def passed(norm, X):
    """Return output, gradients (X's, weight's, bias's) and running statistics."""
    X = X.clone().requires_grad_()
    out = norm(X)
    out.pow(3).sum().backward()
    return (out.detach(), X.grad, norm.weight.grad, norm.bias.grad, norm.running_mean,
            norm.running_var, norm.num_batches_tracked)


def on_rank(sizes):
    rank = dist.get_rank()
    return passed(synchronise(made()), images(sum(sizes)).split(sizes)[rank])


@pytest.mark.parametrize("sizes", [[5], [3, 2], [1, 4, 2]])
def test_ranks_normalise_as_one_batch_norm_over_all_rows(sizes):
    X, ranks = images(sum(sizes)), run_ranks(on_rank, len(sizes), sizes, timeout=300)
    one = passed(made(), X)
    for place in (0, 1):  # outputs, and the gradients of the rows
        torch.testing.assert_close(torch.cat([rank[place] for rank in ranks]), one[place],
                                   rtol=0, atol=1e-11)
    for place in (2, 3):  # a rank's gradient is its rows' part of the sum
        torch.testing.assert_close(sum(rank[place] for rank in ranks), one[place],
                                   rtol=0, atol=1e-11)
    for rank in ranks:
        for mine, whole in zip(rank[4:], one[4:]):
            torch.testing.assert_close(mine, whole, rtol=0, atol=1e-12)


def doubled():
    x = torch.tensor([float(dist.get_rank() + 1)], requires_grad=True)
    total = sum_over_ranks(x)
    (total * (dist.get_rank() + 1)).sum().backward()
    return total.item(), x.grad.item()


def test_the_gradient_of_a_sum_over_ranks_is_the_sum_of_the_gradients():
    assert run_ranks(doubled, 2, timeout=300) == [(3.0, 3.0)] * 2


def test_in_eval_mode_nothing_is_sent():
    norm, X = synchronise(made()).eval(), images(2)
    assert torch.equal(norm(X), made().eval()(X))  # and there is no process group


def test_every_batch_norm_is_replaced_and_keeps_its_numbers():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(
        nn.BatchNorm2d(4)), nn.BatchNorm1d(4))
    before = list(net.parameters())
    assert synchronise(net) is net
    assert [type(layer) for layer in (net[1], net[2][0], net[3])] == [
        SyncNorm, SyncNorm, nn.BatchNorm1d]
    assert all(p is q for p, q in zip(net.parameters(), before))


def with_one_value(rows):
    norm, X = synchronise(nn.BatchNorm2d(2)), torch.ones(rows, 2, 1, 1)
    before = norm.running_var.clone()
    try:
        norm(X)
    except ValueError as error:
        return str(error), torch.equal(norm.running_var, before)
    return norm.running_var.isfinite().all().item()


@pytest.mark.parametrize("rows", [0, 1])
def test_one_value_a_channel_has_no_variance_and_changes_nothing(rows):
    said = f"X has {rows} values a channel over all ranks; need 2"
    assert run_ranks(with_one_value, 1, rows, timeout=300) == [(said, True)]


def test_two_ranks_with_a_value_each_have_a_variance():
    assert run_ranks(with_one_value, 2, 1, timeout=300) == [True, True]
