"""programs/zero.py against the optimizer on one device."""

import pytest
import torch
import torch.distributed as dist
from programs.zero import ShardedOptimizer, state_bytes, zero_bytes
from torch import nn
from torch.nn import functional as F

from manual_dp import largest_difference
from manual_dp.ranks import run_ranks

WAYS = {"SGD": lambda params: torch.optim.SGD(params, lr=0.1),
        "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
        "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01)}


def rows(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(24, 5, generator=generator, dtype=torch.float64),
            torch.randint(3, (24,), generator=generator))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def weights(model):
    return [p.detach() for p in model.parameters()]


def on_one_device(way, steps=6):
    model, (X, y) = net(), rows()
    optimizer = WAYS[way](model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return weights(model), state_bytes(optimizer)


def sharded(way, steps=6):
    model, (X, y) = net(), rows()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = ShardedOptimizer(model.parameters(), WAYS[way])
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X[rank::world_size]), y[rank::world_size]).backward()
        optimizer.step()
    return weights(model), state_bytes(optimizer.optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_the_weights_are_those_of_one_device_to_the_same_bits_on_all_ranks(way):
    right, whole = on_one_device(way)
    for ranks in (run_ranks(sharded, world_size, way) for world_size in (1, 4)):
        assert largest_difference(ranks[0][0], right) < 1e-12
        assert all(largest_difference(ours, ranks[0][0]) == 0 for ours, _ in ranks)
    # four ranks keep a quarter each, rounded up: the last chunk is filled with zeros
    moments = {"SGD": 0, "momentum": 8}.get(way, 16)
    assert whole == moments * 66 and [kept for _, kept in ranks] == [17 * moments] * 4


def test_what_happens_to_weights_and_gradients_around_a_step():
    def rank():
        model, other, (X, y) = net(), nn.Linear(5, 7).double(), rows()
        optimizer = ShardedOptimizer(model.parameters(), WAYS["SGD"])
        loss = F.cross_entropy(model(X), y)
        loss.backward(retain_graph=True)
        before = [p.clone() for p in weights(model)]
        model[0].weight.grad = None  # a missing one is zero
        optimizer.step()
        moved = [largest_difference([a], [b]) > 0 for a, b in zip(before, weights(model))]
        assert moved == [False, True, True, True]
        assert [p.grad for p in (*model.parameters(), optimizer.shard)] == [None] * 5
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()
        dist.broadcast(other.weight.detach(), 0)  # what is loaded is the optimizer's
        model[0].load_state_dict(other.state_dict())
        optimizer.step()
        assert largest_difference([model[0].weight.detach()], [other.weight.detach()]) == 0
        model.float()
        with pytest.raises(ValueError, match="parameter 0 is no longer a view"):
            optimizer.step()
    run_ranks(rank, 2)


@pytest.mark.parametrize("stage, gigabytes", [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_formula_gives_the_papers_figures(stage, gigabytes):
    # Rajbhandari et al. 2020, figure 1: 7.5e9 weights on 64 ranks
    assert zero_bytes(7.5e9, 64, stage) / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert zero_bytes(7.5e9, 1, stage) == 120e9
