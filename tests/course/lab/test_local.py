import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course.lab import trace
from course.lab.local import average_weights, local_sgd
from manual_dp import largest_difference
from manual_dp.ranks import DDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def draw(steps):
    """Return as many batches of 12 rows, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(12, 3, dtype=torch.float64, generator=generator),
             torch.randint(2, (12,), generator=generator)) for _ in range(steps)]


def mine(batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    return [(X[rank::n], y[rank::n]) for X, y in batches]


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def after(every, steps, momentum=0.0, lr=0.5):
    """Train this rank; return its weights after every step."""
    model, path = network(), []
    local_sgd(model, torch.optim.SGD(model.parameters(), lr, momentum=momentum),
              F.cross_entropy, mine(draw(steps)), every,
              lambda model: path.append(weights(model)))
    return path


def with_ddp(momentum):
    model, path = DDP(network()), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=momentum)
    for X, y in mine(draw(5)):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        path.append(weights(model))
    return path


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_an_average_in_every_step_is_ddp(n, momentum):
    ours = run_ranks(after, n, 1, 5, momentum)
    theirs = run_ranks(with_ddp, n, momentum)
    for path, right in zip(ours, theirs):
        assert len(path) == 5
        assert max(map(largest_difference, path, right)) <= 1e-12


@pytest.mark.parametrize("every, equal", [(1, {1, 2, 3, 4, 5, 6}), (2, {2, 4, 6}),
                                          (4, {4}), (6, {6}), (7, set())])
def test_ranks_are_equal_after_an_average_and_at_no_other_time(every, equal):
    first, last = run_ranks(after, 2, every, 6)
    assert {step for step, (a, b) in enumerate(zip(first, last), 1)
            if largest_difference(a, b) == 0} == equal


def test_between_averages_each_rank_trains_alone():
    def alone(rank):
        model, (X, y) = network(), draw(1)[0]
        F.cross_entropy(model(X[rank::3]), y[rank::3]).backward()
        return [p.detach() - 0.5 * p.grad for p in model.parameters()]
    for rank, path in enumerate(run_ranks(after, 3, 2, 1)):
        assert largest_difference(path[0], alone(rank)) <= 1e-12


@pytest.mark.parametrize("every, messages", [(1, 8), (3, 2), (4, 2), (8, 1), (9, 0)])
def test_a_message_of_all_weights_is_sent_once_in_so_many_steps(every, messages):
    def sent():
        with trace.all_reduces() as sizes:
            after(every, 8)
        return sizes
    assert run_ranks(sent, 2) == [[3 * 5 + 5 + 5 * 2 + 2] * messages] * 2


def test_the_average_is_the_mean_of_weights_and_buffers_but_not_of_counts():
    def averaged():
        layer, rank = nn.BatchNorm1d(3).double(), dist.get_rank()
        layer.weight.data.fill_(rank)
        layer.running_mean.fill_(10 * rank)
        layer.num_batches_tracked.fill_(rank)
        average_weights(layer)
        return (layer.weight.tolist(), layer.running_mean.tolist(),
                layer.num_batches_tracked.item())
    for rank, (weight, mean, count) in enumerate(run_ranks(averaged, 4)):
        assert weight == [1.5] * 3 and mean == [15.0] * 3 and count == rank


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_an_interval_that_is_no_number_of_steps_is_refused(every):
    model = network()
    before = weights(model)
    with pytest.raises(ValueError, match=f"every must be .* >= 1, got {every!r}"):
        local_sgd(model, torch.optim.SGD(model.parameters(), 0.5), F.cross_entropy,
                  draw(1), every)
    assert largest_difference(weights(model), before) == 0
