"""check_ranks finds what ranks should share and do not, and is silent otherwise."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.alike import check_ranks
from manual_dp.ranks import DDP, run_ranks
from tests.support.broken_training import ddp, net, ordinary, plain, rows, sgd, shard


def checked(make, act=None, world_size=2):
    """Return each rank's findings after `act(model, optimizer)`."""
    def rank():
        torch.set_default_dtype(torch.float64)
        model, optimizer = make()
        options = (act or (lambda *_: {}))(model, optimizer) or {}
        return check_ranks(model, **options)
    return run_ranks(rank, world_size, timeout=30)


def codes(found):
    assert all(mine == found[0] for mine in found), "the ranks disagree"
    return [f.code for f in found[0]]


def on_rank1(change):
    def act(model, optimizer):
        if dist.get_rank() == 1:
            with torch.no_grad():
                change(model, optimizer)
        return {"optimizer": optimizer}
    return act


def with_norm(wrap):
    return lambda: sgd(wrap(net(nn.BatchNorm1d(8))))


def trained(model, optimizer):
    X, y = rows(12)(0)
    ordinary(model, optimizer, X, y)
    return {"batch": (shard(X), shard(y)), "optimizer": optimizer, "gradients": True,
            "sampler": DistributedSampler(range(12))}


# silence

@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("wrap", [DistributedDataParallel, DDP])
def test_ranks_that_train_in_step_have_no_finding(wrap, world_size):
    # running means differ until the next forward, which sends rank 0's
    assert codes(checked(with_norm(wrap), trained, world_size)) == []


def test_a_model_alone_may_be_checked():
    assert codes(checked(plain)) == []


# weights, gradients, buffers

def test_the_first_parameter_that_differs_is_named_with_the_distance():
    def change(model, optimizer):
        list(model.parameters())[2][1, 3] += 0.25
        list(model.parameters())[3] += 7
    found = checked(plain, on_rank1(change), world_size=3)
    assert codes(found) == ["replicas-differ"]
    [one] = found[0]
    assert (one.parameter, one.rank, one.number) == ("2.weight", 1, 0.25)
    assert one.says == "2.weight is 2.5e-01 from rank 0's on rank 1"


def test_the_last_bit_of_one_weight_is_seen():
    def change(model, optimizer):
        weight = list(model.parameters())[0]
        weight[2, 2] = torch.nextafter(weight[2, 2], torch.tensor(9.0).double())
    assert codes(checked(plain, on_rank1(change))) == ["replicas-differ"]


def test_a_weight_that_is_not_a_number_is_seen():
    def change(model, optimizer):
        list(model.parameters())[0][0, 0] = torch.nan
    found = checked(plain, on_rank1(change))
    assert codes(found) == ["replicas-differ", "not-finite"]
    assert found[0][0].number == float("inf")


def test_gradients_are_compared_where_asked():
    found = checked(plain, trained)
    assert codes(found) == ["not-synchronised", "replicas-differ"]
    assert found[0][0].says.startswith("the gradient of 0.weight is ")


def test_a_gradient_that_only_some_ranks_have_is_seen():
    def act(model, optimizer):
        if dist.get_rank():
            model(rows(4)(0)[0]).sum().backward()
        return {"gradients": True}
    found = checked(plain, act)
    assert codes(found) == ["not-synchronised"]
    assert found[0][0].says == "some rank has no gradient"


def test_running_means_apart_are_seen_where_nobody_sends_them():
    def act(model, optimizer):
        model(rows(4, seed=dist.get_rank())(0)[0])
    found = checked(with_norm(lambda module: module), act)
    assert codes(found) == ["buffers"]
    assert found[0][0].parameter == "1.running_mean"


def test_other_layers_on_a_rank_are_a_finding():
    def make():
        return sgd(net(*[nn.Linear(8, 8)] * dist.get_rank()))
    found = checked(make)
    assert codes(found) == ["start-differs"]
    assert found[0][0].says == ("rank 1 has 6 parameters, rank 0 4, or other names or "
                                "shapes")


# rows and samplers

@pytest.mark.parametrize("mine, code", [
    (lambda rank: [0, 1, 2], ["rows-same"]),
    (lambda rank: [0, 1, 2] if rank else [2, 3, 4], ["rows-overlap"]),
    (lambda rank: [0, 1, 0] if rank else [2, 3, 4], ["rows-repeated"]),
    (lambda rank: [0, 1] if rank else [2, 3, 4], [])])
def test_rows_on_several_ranks_are_seen(mine, code):
    def act(model, optimizer):
        X, y = rows(12)(0)
        i = mine(dist.get_rank())
        return {"batch": (X[i], y[i])}
    assert codes(checked(plain, act)) == code


@pytest.mark.parametrize("options, code", [
    (lambda rank: {"seed": rank}, ["sampler-seed"]),
    (lambda rank: {"rank": 0, "num_replicas": 2}, ["sampler-settings"]),
    (lambda rank: {"num_replicas": 2 + rank, "rank": rank}, ["sampler-settings"]),
    (lambda rank: {"shuffle": False, "seed": rank}, []),
    (lambda rank: {"seed": 7}, [])])
def test_samplers_that_do_not_fit_together_are_seen(options, code):
    def act(model, optimizer):
        return {"sampler": DistributedSampler(range(12), **options(dist.get_rank()))}
    assert codes(checked(plain, act)) == code


@pytest.mark.parametrize("set_epoch, code", [(False, ["sampler-epoch"]), (True, [])])
def test_a_batch_that_comes_again_in_the_same_epoch_is_seen(set_epoch, code):
    def act(model, optimizer):
        X, _ = rows(12)(0)
        sampler = DistributedSampler(range(12))
        for epoch in range(2):
            if set_epoch:
                sampler.set_epoch(epoch)
            mine = list(sampler)
            for part in (mine[:3], mine[3:])[:2 - epoch]:
                options = {"batch": X[part], "sampler": sampler}
                if (epoch, part) != (1, mine[:3]):
                    assert check_ranks(model, **options) == []
        return options
    assert codes(checked(plain, act)) == code


def test_the_same_batch_in_another_epoch_is_no_finding():
    def act(model, optimizer):
        sampler, batch = DistributedSampler(range(4)), shard(rows(4)(0)[0])
        assert check_ranks(model, batch, sampler) == []
        sampler.set_epoch(1)
        return {"batch": batch, "sampler": sampler}
    assert codes(checked(plain, act)) == []


# optimizers

def test_a_rate_of_its_own_is_seen():
    def change(model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.05
    found = checked(plain, on_rank1(change))
    assert codes(found) == ["rates-differ"]
    assert found[0][0].says == "lr is 0.05 on rank 1, 0.1 on rank 0"


def test_an_optimizer_of_other_tensors_is_seen():
    found = checked(lambda: (ddp()[0], plain()[1]),
                    lambda model, optimizer: {"optimizer": optimizer})
    assert codes(found) == ["not-in-optimizer"]


# arguments

def test_it_needs_a_module_and_a_process_group():
    with pytest.raises(TypeError, match="model must be a module, got int"):
        check_ranks(3)
    with pytest.raises(RuntimeError, match="no process group: call check_ranks in a"):
        check_ranks(net())


def test_nothing_is_changed():
    def rank():
        model, optimizer = ddp()
        before = [p.clone() for p in model.parameters()]
        state = torch.get_rng_state()
        check_ranks(model, torch.rand(3, 5), None, optimizer)
        torch.set_rng_state(state)
        same = all(map(torch.equal, before, model.parameters()))
        return same, [p.grad for p in model.parameters()] == [None] * 4
    assert run_ranks(rank, 2) == [(True, True)] * 2
