"""The sharded optimizer against torch's DDP and the optimizer on one device."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.zero import ShardedOptimizer, state_bytes, zero_bytes
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


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("way", ["momentum", "Adam"])
def test_the_weights_are_those_of_one_device(way, world_size):
    right, _ = on_one_device(way)
    for ours, _ in run_ranks(sharded, world_size, way):
        assert largest_difference(ours, right) < 1e-12


@pytest.mark.parametrize("way", ["SGD", "AdamW"])
def test_each_step_is_that_of_ddp(way):
    def both():
        model = DistributedDataParallel(net())
        (X, y), rank = rows(), dist.get_rank()
        optimizer = WAYS[way](model.parameters())
        far = []
        for steps in range(1, 4):
            optimizer.zero_grad()
            F.cross_entropy(model(X[rank::2]), y[rank::2]).backward()
            optimizer.step()
            far.append(largest_difference(weights(model), sharded(way, steps)[0]))
        return max(far)
    assert max(run_ranks(both, 2)) < 1e-12


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_rank_keeps_its_part_of_the_state(world_size):
    _, whole = on_one_device("Adam")
    numbers = whole // 16  # two moments of 8 bytes
    part = -(-numbers // world_size)  # rounded up: the last chunk is filled with zeros
    assert [kept for _, kept in run_ranks(sharded, world_size, "Adam")] == (
        [16 * part] * world_size)


def live_bytes():
    """Return the bytes of all tensors that this process holds, shared ones once."""
    gc.collect()
    storages = [t.untyped_storage() for t in gc.get_objects()
                if issubclass(type(t), torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def bytes_a_weight(sharded, steps=2):
    """Return what stays of a float32 network and its Adam after a step, by weight."""
    X, y = torch.rand(8, 300), torch.arange(8)
    before = live_bytes()
    model = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 100))
    make = WAYS["Adam"]
    optimizer = (ShardedOptimizer(model.parameters(), make) if sharded
                 else make(model.parameters()))
    for _ in range(steps):
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (live_bytes() - before) / sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("world_size, sharded, a_weight", [
    (1, False, 12), (2, True, 8), (4, True, 6), (8, True, 5)])
def test_a_rank_holds_the_weights_once_and_its_part_of_adam(world_size, sharded, a_weight):
    # float32: 4 for the weight, 8 / N for two moments
    held = run_ranks(bytes_a_weight, world_size, sharded)
    assert held == [pytest.approx(a_weight, rel=0.02)] * world_size


def test_a_step_uses_the_gradients_up():
    def step():
        model = net()
        optimizer = ShardedOptimizer(model.parameters(), WAYS["Adam"])
        F.cross_entropy(model(rows()[0]), rows()[1]).backward()
        optimizer.step()
        return [p.grad for p in model.parameters()] + [optimizer.shard.grad]
    assert run_ranks(step, 2) == [[None] * 5] * 2


def test_weights_that_are_loaded_later_are_the_optimizers():
    def step():
        model, other = net(), nn.Linear(5, 7).double()
        optimizer = ShardedOptimizer(model.parameters(), lambda p: torch.optim.SGD(p, 0.0))
        dist.broadcast(other.weight.detach(), 0)
        model[0].load_state_dict(other.state_dict())
        F.cross_entropy(model(rows()[0]), rows()[1]).backward()
        optimizer.step()
        return largest_difference([model[0].weight.detach()], [other.weight.detach()])
    assert run_ranks(step, 2) == [0, 0]


def test_backward_through_weights_of_before_the_step_is_refused():
    def late():
        model, (X, y) = net(), rows()
        optimizer = ShardedOptimizer(model.parameters(), WAYS["SGD"])
        loss = F.cross_entropy(model(X), y)
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    run_ranks(late, 2)


def test_a_model_that_was_moved_away_is_refused():
    def moved():
        model = net()
        optimizer = ShardedOptimizer(model.parameters(), WAYS["SGD"])
        model.float()
        with pytest.raises(ValueError, match="parameter 0 is no longer a view"):
            optimizer.step()
    run_ranks(moved, 2)


def test_all_ranks_end_with_the_same_bits():
    first, *others = [ours for ours, _ in run_ranks(sharded, 3, "Adam")]
    assert [largest_difference(first, other) for other in others] == [0, 0]


def test_a_missing_gradient_is_zero():
    def frozen():
        model = net()
        optimizer = ShardedOptimizer(model.parameters(), WAYS["SGD"])
        before = [p.clone() for p in weights(model)]
        F.cross_entropy(model(rows()[0]), rows()[1]).backward()
        model[0].weight.grad = None
        optimizer.step()
        return [largest_difference([a], [b]) > 0 for a, b in zip(before, weights(model))]
    assert run_ranks(frozen, 2) == [[False, True, True, True]] * 2


@pytest.mark.parametrize("stage, gigabytes", [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_formula_gives_the_papers_figures(stage, gigabytes):
    # Rajbhandari et al. 2020, figure 1: 7.5e9 weights on 64 ranks
    assert zero_bytes(7.5e9, 64, stage) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_on_one_rank_all_stages_are_alike(stage):
    assert zero_bytes(10, 1, stage) == 160


@pytest.mark.parametrize("stage", [-1, 4, "1", None])
def test_an_unknown_stage_is_refused(stage):
    with pytest.raises(ValueError, match="stage must be 0, 1, 2 or 3, got"):
        zero_bytes(10, 2, stage)


def test_no_rank_is_refused():
    with pytest.raises(ValueError, match="world_size must be 1 or more, got 0"):
        zero_bytes(10, 0, 1)


def test_two_dtypes_are_refused():
    params = [torch.zeros(2), torch.zeros(2, dtype=torch.float64)]
    with pytest.raises(TypeError, match="params must have one dtype, got .*float64"):
        ShardedOptimizer(params, WAYS["SGD"])


def test_without_a_group_it_says_so():
    with pytest.raises(ValueError, match="no process group"):
        ShardedOptimizer([torch.zeros(2)], WAYS["SGD"])
