"""check_ranks finds what ranks should share and do not, and is silent otherwise."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.alike import NotTogether, RanksDiffer, check_ranks
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


def test_what_ddp_was_told_to_leave_alone_is_each_ranks_own():
    def experts():
        model = net(nn.Linear(8, 8))  # 1: the expert
        ignored = ["1.weight", "1.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        with torch.no_grad():
            model[1].weight += dist.get_rank()
        return (wrapped := DistributedDataParallel(model)), torch.optim.SGD(
            wrapped.parameters(), 0.1, momentum=0.9)

    def act(model, optimizer):
        X, y = rows(12)(0)
        ordinary(model, optimizer, X, y)
        return {"optimizer": optimizer, "gradients": True}
    assert codes(checked(experts, act)) == []

    def another(model, optimizer):
        act(model, optimizer)
        return on_rank1(lambda model, _: model.module[0].weight.add_(1))(model, optimizer)
    [finding] = checked(experts, another)[0]
    assert (finding.code, finding.parameter) == ("replicas-differ", "0.weight")


@pytest.mark.parametrize("ignored, found", [(["1.running_mean", "1.running_var"], []),
                                            (["1.running_mean"], ["buffers"])])
def test_buffers_that_ddp_was_told_to_leave_alone_are_each_ranks_own(ignored, found):
    def counting():
        model = net(nn.BatchNorm1d(8))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        model[1].running_mean += dist.get_rank()
        model[1].running_var += dist.get_rank()
        model = DistributedDataParallel(model, broadcast_buffers=False)
        return model, torch.optim.SGD(model.parameters(), 0.1)
    assert codes(checked(counting)) == found


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


def test_the_distance_of_a_large_parameter_is_about_right():
    def alike():
        torch.manual_seed(0)  # each rank has a seed of its own
        return sgd(net(nn.Linear(8, 900), nn.Linear(900, 8)))

    def change(model, optimizer):
        model[1].weight[-1, -1] += 0.5
    found = checked(alike, on_rank1(change))
    assert 0.2 < found[0][0].number < 0.8


def test_the_last_bit_of_one_weight_is_seen():
    def change(model, optimizer):
        weight = list(model.parameters())[0]
        weight[2, 2] = torch.nextafter(weight[2, 2], torch.tensor(9.0).double())
    assert codes(checked(plain, on_rank1(change))) == ["replicas-differ"]


def test_a_weight_that_is_not_a_number_is_seen():
    def change(model, optimizer):
        list(model.parameters())[0][0, 0] = torch.nan
    found = checked(plain, on_rank1(change))
    assert codes(found) == ["not-finite", "replicas-differ"]
    assert found[0][1].number == float("inf")


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


# programs, right and wrong: each is called in one rank after the other's

class Pair:
    """Hold a rank's own rows, as a data set's collate function may."""

    def __init__(self, X, y):
        self.X, self.y = X, y


@dataclass
class Batch:
    X: torch.Tensor
    extra: dict


def twice(change=lambda rank, model, optimizer: None, wrap=ddp, **options):
    """Return a program: check_ranks of what `wrap` makes after a change to it."""
    def program(rank):
        model, optimizer = wrap()
        with torch.no_grad():
            change(rank, model, optimizer)
        return check_ranks(model, optimizer=optimizer, **options)
    return program


def given(make_batch):
    """Return a program: check_ranks with the batch that make_batch(rank) returns."""
    return lambda rank: check_ranks(net(), make_batch(rank))


def of_two(change):
    """Return a program: a model and a critic; change(rank, models, optimizers)."""
    def program(rank):
        models, optimizers = zip(ddp(), sgd(net(seed=1)))
        with torch.no_grad():
            change(rank, models, optimizers)
        return check_ranks(models, optimizer=optimizers)
    return program


def mine(v, rank):
    return v[rank::2]


def adam():
    model = net()
    return model, torch.optim.Adam(model.parameters())


def stepped(rank, model, optimizer, times=1):
    with torch.enable_grad():
        for _ in range(times):
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()


def norm_of_its_own(rank, model, optimizer):
    with torch.no_grad():
        model(torch.rand(4, 5) + rank)


def sharded(rank):
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(net(), mesh=mesh)
    return check_ranks(model, optimizer=sgd(model)[1], gradients=True)


def sharded_otherwise(rank):
    mesh, model = init_device_mesh("cpu", (2,)), net()
    if rank:
        fully_shard(model, mesh=mesh)
    return check_ranks(model)


def checked_beside_a_sum(rank):
    numbers = torch.ones(3) * rank
    work = dist.all_reduce(numbers, async_op=True)
    found = check_ranks(net())
    work.wait()
    return found + [] if numbers.tolist() == [1, 1, 1] else ["another sum"]


def in_a_thread(rank):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(check_ranks, net()).result()


def lazy(rank):
    return check_ranks(nn.Sequential(nn.LazyLinear(3)))


X, Y = rows(12)(0)
RIGHT = {
    "ddp": twice(),
    "a model in no wrapper": twice(wrap=plain),
    "Adam with a state": twice(stepped, adam),
    "batch norm under DDP": twice(norm_of_its_own, with_norm(DistributedDataParallel)),
    "frozen on all ranks": twice(lambda r, m, o: m.requires_grad_(False)),
    "eval mode on all ranks": twice(lambda r, m, o: m.eval()),
    "two models": of_two(lambda *_: None),
    "no model at all": lambda rank: check_ranks([]),
    "a dict": given(lambda r: {"X": mine(X, r), "mask": torch.ones(6, 2),
                               "y": {"class": mine(Y, r)}, "name": "train"}),
    "a dataclass": given(lambda r: Batch(mine(X, r), {"n": 3, "y": mine(Y, r)})),
    "an object": given(lambda r: Pair(X, Y)),
    "one image, several questions": given(lambda r: (
        torch.ones(2, 9), torch.arange(8).view(4, 2)[2 * r:2 * r + 2])),
    "users and items": given(lambda r: (torch.tensor([1, 2]), torch.tensor([3, 4]) + r)),
    "no rows on rank 1": given(lambda r: (X[:3 - 3 * r], Y[:3 - 3 * r])),
    "words of another length": given(lambda r: torch.ones(2, 3 + r, dtype=int).cumsum(
        0)),
    "a lazy layer": lazy,
    "fully_shard": sharded,
    "beside a collective": checked_beside_a_sum,
    "in a thread": in_a_thread,
}


def on(changed, change):
    """Return a change on one rank."""
    return lambda rank, *made: change(*made) if rank == changed else None


def of_weight(change):
    return lambda model, optimizer: change(next(model.parameters()))


def option(**options):
    return on(1, lambda model, optimizer: optimizer.param_groups[0].update(options))


def wrong_labels(rank):
    return X[:4], Y[:4] + rank


WRONG = {
    "train mode on rank 1": ("modes", twice(on(1, lambda m, o: m.eval()))),
    "eval mode on rank 0": ("modes", twice(on(0, lambda m, o: m.eval()))),
    "dropout in eval": ("modes", twice(
        on(1, lambda m, o: m[1].eval()), lambda: sgd(net(nn.Dropout())))),
    "a frozen layer": ("frozen", twice(on(1, of_weight(lambda p: p.requires_grad_(
        False))))),
    "NaN on all ranks": ("not-finite", twice(
        lambda r, m, o: next(m.parameters()).fill_(torch.nan))),
    "inf on rank 0": ("not-finite replicas-differ", twice(on(
        0, of_weight(lambda p: p[0].fill_(torch.inf))))),
    "NaN in a buffer": ("not-finite", twice(
        lambda r, m, o: m.module[1].running_var.fill_(torch.nan),
        with_norm(DistributedDataParallel))),
    "weights": ("replicas-differ", twice(on(1, of_weight(lambda p: p.mul_(1.5))))),
    "a large layer": ("replicas-differ", twice(
        on(1, lambda m, o: m[1].weight[0, 0].add_(0.5)),
        lambda: sgd(net(nn.Linear(8, 900), nn.Linear(900, 8))))),
    "a buffer": ("buffers", twice(
        on(1, lambda m, o: m[1].running_var.fill_(3)), with_norm(lambda m: m))),
    "a counter under DDP": ("buffers", twice(
        on(1, lambda m, o: m.module[1].num_batches_tracked.fill_(3)),
        with_norm(DistributedDataParallel))),
    "lr": ("rates-differ", twice(option(lr=0.3))),
    "weight decay": ("settings", twice(option(weight_decay=0.3))),
    "momentum": ("settings", twice(option(momentum=0.3))),
    "nesterov": ("settings", twice(option(nesterov=True))),
    "betas": ("settings", twice(option(betas=(0.5, 0.9)), adam)),
    "one step more": ("replicas-differ state-differs", twice(
        lambda r, m, o: stepped(r, m, o, 1 + r), adam)),
    "an average": ("state-differs", twice(
        lambda r, m, o: stepped(r, m, o) or r and o.state[next(m.parameters())][
            "exp_avg"].mul_(2), adam)),
    "an optimizer on rank 0 alone": ("settings", lambda rank: check_ranks(
        (model := net()), optimizer=None if rank else sgd(model)[1])),
    "a layer not held": ("not-in-optimizer", twice(
        lambda r, m, o: o.param_groups[0]["params"].pop())),
    "the critic's weights": ("replicas-differ", of_two(
        on(1, lambda models, _: models[1][0].weight.mul_(2)))),
    "the critic's mode": ("modes", of_two(on(1, lambda models, _: models[1].eval()))),
    "the critic's lr": ("rates-differ", of_two(
        on(1, lambda _, optimizers: optimizers[1].param_groups[0].update(lr=7)))),
    "a dict of the same rows": ("rows-same", given(lambda r: {"n": 7, "X": X, "y": Y})),
    "a dataclass of the same rows": ("rows-same", given(lambda r: Batch(X, {"y": Y}))),
    "one row on both ranks": ("rows-overlap", given(
        lambda r: {"X": X[5 * r:5 * r + 6], "y": Y[5 * r:5 * r + 6]})),
    "another y for the same X": ("rows-same labels", given(wrong_labels)),
    "another mask for the same X": ("labels", given(
        lambda r: (X, torch.rand(12, 4) + r))),
    "float32 on rank 1": ("start-differs", twice(
        on(1, lambda m, o: m.float()), plain)),
    "sharded on rank 1 alone": ("start-differs", sharded_otherwise),
}


def all_programs():
    """Run every program in this rank; return its codes, or what it raised, by name."""
    torch.set_default_dtype(torch.float64)
    told = {}
    programs = RIGHT | {name: program for name, (_, program) in WRONG.items()}
    for name, program in programs.items():
        try:
            told[name] = [getattr(f, "code", f) for f in program(dist.get_rank())]
        except Exception as error:
            told[name] = repr(error)
    return told


@pytest.fixture(scope="module")
def told():
    first, second = run_ranks(all_programs, 2, timeout=120)
    assert first == second
    return first


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_no_finding(told, name):
    assert told[name] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_has_its_finding(told, name):
    assert told[name] == WRONG[name][0].split()


# ranks that do not meet

def outcomes(program, world_size=2):
    """Return what each rank's calls said: [], codes, or the words of the error."""
    def rank():
        said = []

        def call(**options):
            try:
                said.append([f.code for f in check_ranks(net(), **options)])
            except (NotTogether, RanksDiffer) as error:
                said.append(str(error))
        program(dist.get_rank(), call)
        return said
    return run_ranks(rank, world_size, timeout=40)


def test_a_rank_that_does_not_come_is_named_and_later_hears_of_it():
    def program(rank, call):
        call(timeout=20)
        if rank != 1:
            call(timeout=0.3)
        else:
            time.sleep(1.5)
            call(timeout=20)
        dist.barrier()
        call(timeout=20)
    first, second, third = outcomes(program, 3)
    away = ("check_ranks: rank 1 did not come to call 2 within 0.3 s (it was last seen "
            "at call 1)")
    assert first == third == [[], away, []]
    assert second == [[], away, []]


def test_called_on_one_rank_alone_it_ends_and_the_other_is_at_another_call():
    def program(rank, call):
        if rank == 1:
            call(timeout=0.2)
        dist.barrier()
        time.sleep(1 - rank)  # rank 1 is in its second call by then
        call(timeout=20)
    first, second = outcomes(program)
    away = "check_ranks: rank 0 did not come to call 1 within 0.2 s (it has not called it"
    apart = "check_ranks: rank 1 is at its call 2, rank 0 at 1"
    assert second[0].startswith(away)
    assert first == [apart] and second[1] == apart


def test_it_warns_on_rank_0_and_raises_on_every_rank_where_asked():
    def rank():
        model = net(seed=dist.get_rank())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = check_ranks(model, then="warn")
        try:
            check_ranks(model, then="raise")
        except RanksDiffer as error:
            return len(seen), found == error.findings, str(error)[:29]
    assert run_ranks(rank, 2, timeout=30) == [
        (1, True, "check_ranks: replicas-differ:"),
        (0, True, "check_ranks: replicas-differ:")]


@pytest.mark.parametrize("drop, found", [
    (slice(0, 1), ["not-in-optimizer"]), (slice(0, 0), [])])
def test_a_parameter_that_one_ranks_optimizer_does_not_hold_is_found(drop, found):
    def act(model, optimizer):
        if dist.get_rank() == 1:
            del optimizer.param_groups[0]["params"][drop]
        return {"optimizer": optimizer}
    assert codes(checked(plain, act)) == found


@pytest.mark.parametrize("ranks, found", [([1], ["settings"]), ([0, 1], [])])
def test_an_optimizer_with_its_parameters_in_another_order_is_found(ranks, found):
    def act(model, optimizer):
        if dist.get_rank() in ranks:  # a checkpoint would give momenta to others
            optimizer.param_groups[0]["params"].reverse()
        return {"optimizer": optimizer}
    assert codes(checked(plain, act)) == found


def test_optimizers_that_share_out_the_parameters_hold_all():
    def act(model, optimizer):
        held = optimizer.param_groups[0]["params"]
        held[:] = held[dist.get_rank()::2]
        return {"optimizer": optimizer}
    assert codes(checked(plain, act)) == []


@pytest.mark.parametrize("mine, found", [
    (lambda y: y, ["labels"]), (lambda y: y + dist.get_rank(), []),
    (lambda y: y.round(), []), (lambda y: (10 * y).long(), []), (lambda y: y[:3], [])])
def test_the_same_numbers_beside_other_rows_are_found(mine, found):
    def act(model, optimizer):
        torch.manual_seed(dist.get_rank())
        y = mine(torch.tensor([0.1, 0.2, 0.3, 0.45, 0.51]))
        return {"batch": (torch.rand(len(y), 4), y)}
    assert codes(checked(plain, act)) == found


def test_nothing_is_left_in_the_store():
    def rank():
        store = dist.distributed_c10d._get_default_store()
        before = store.num_keys()
        for _ in range(3):
            check_ranks(net(seed=dist.get_rank()))
        dist.barrier()
        return store.num_keys() - before
    # at/0, at/1, last, and the last exchange's answer
    assert max(run_ranks(rank, 2, timeout=30)) <= 4


# arguments

def test_it_needs_a_module_and_a_process_group():
    with pytest.raises(TypeError, match="model must be a module, got int"):
        check_ranks(3)
    with pytest.raises(ValueError, match="then must be 'return', 'warn' or 'raise'"):
        check_ranks(net(), then="print")
    with pytest.raises(RuntimeError, match="no process group: call check_ranks in a"):
        check_ranks(net())


@pytest.mark.parametrize("given, name", [
    (lambda o: [o], "batch"), (lambda o: [[o, o]], "batch"), (lambda o: [None, o], "sampler")])
def test_an_optimizer_in_the_place_of_something_else_is_refused(given, name):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=f"{name} is an optimizer: say optimizer="):
        check_ranks(model, *given(optimizer))


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
