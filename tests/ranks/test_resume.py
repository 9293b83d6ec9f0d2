import itertools
import pickle
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from manual_dp.ranks import run_ranks
from manual_dp.ranks.checkpoint import CheckpointError, load, save
from manual_dp.ranks.resume import load_model, resume, snapshot, strip_prefix
from tests.ranks.conftest import same

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# wrappers


def wrapped(model, times=1):
    """Wrap the model as DataParallel does: names begin with "module."."""
    for _ in range(times):
        model = nn.DataParallel(model)
    return model


def small_model(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)
    )
    return model.to(dtype)


@pytest.mark.parametrize(
    "names, bare",
    [
        (["module.W", "module.b"], ["W", "b"]),
        (["module.W", "b"], ["module.W", "b"]),  # a part that happens to be called so
        (["module.module.W", "module.b"], ["module.W", "b"]),
        (["module.module.W"], ["W"]),
        (["modules.W"], ["modules.W"]),
        ([], []),
    ],
)
def test_the_prefix_goes_if_all_names_have_it(names, bare):
    state_dict = {name: torch.tensor(i) for i, name in enumerate(names)}
    stripped = strip_prefix(state_dict)
    assert list(stripped) == bare and list(state_dict) == names
    assert all(a is b for a, b in zip(stripped.values(), state_dict.values()))
    assert strip_prefix({"_orig_mod.W": 1}, "_orig_mod.") == {"W": 1}
    assert strip_prefix({"W": 1}, "") == {"W": 1}


@pytest.mark.parametrize("saved_in, loaded_in", [(0, 1), (2, 0)])
def test_weights_fit_whatever_is_wrapped(path, saved_in, loaded_in):
    source, target = small_model(1), small_model(2)
    save(path, wrapped(source, saved_in).state_dict())
    load_model(wrapped(target, loaded_in), load(path))
    assert same(dict(target.state_dict()), dict(source.state_dict()))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda state: state.pop("4.bias"),
            r"4.bias is missing in the checkpoint, torch.float64 \(2,\) in the model",
        ),
        (
            lambda state: state.update({"5.bias": torch.ones(2)}),
            r"5.bias is torch.float32 \(2,\) in the checkpoint, missing in the model",
        ),
        (
            lambda state: state.update({"4.weight": torch.ones(4, 2).double()}),
            r"4.weight is torch.float64 \(4, 2\) in the checkpoint, torch.float64 \(2, 4\) in",
        ),
        (
            lambda state: state.update({"4.weight": torch.ones(2, 4)}),
            r"4.weight is torch.float32 \(2, 4\) in the checkpoint, torch.float64 \(2, 4\) in",
        ),
        (
            lambda state: state.update({"4.weight": [1.0]}),
            r"4.weight is list in the checkpoint, torch.float64 \(2, 4\) in the model",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_and_nothing_changes(change, message):
    state, model = dict(small_model(1).state_dict()), small_model(2)
    change(state)
    with pytest.raises(CheckpointError, match="^" + message):
        load_model(model, state)
    assert same(dict(model.state_dict()), dict(small_model(2).state_dict()))


# snapshot and resume

EPOCHS = 3


class Run:
    """A small run on rank 1 of 2: dropout draws from torch's generator."""

    def __init__(self, seed=0, device="cpu"):
        generator = torch.Generator().manual_seed(5)
        X = torch.rand(40, 3, dtype=torch.float64, generator=generator)
        y = torch.rand(40, 2, dtype=torch.float64, generator=generator)
        data = TensorDataset(X.to(device), y.to(device))
        self.sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=7)
        self.loader = DataLoader(
            data, batch_size=4, sampler=self.sampler, generator=torch.Generator()
        )
        self.model = small_model(seed).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self, epoch=0, step=0, until=(EPOCHS, 0)):
        """Take the steps from (epoch, step) to `until`."""
        while (epoch, step) < until:
            self.sampler.set_epoch(epoch)
            for X, y in itertools.islice(self.loader, step, None):
                if (epoch, step) == until:
                    return
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(X), y).backward()
                self.optimizer.step()
                step += 1
            epoch, step = epoch + 1, 0

    def bits(self):
        return [
            dict(self.model.state_dict()),
            self.optimizer.state_dict(),
            torch.get_rng_state(),
        ]


def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(path):
    whole, until = Run(), (1, 3)
    whole.train()
    expected = whole.bits()
    half = Run()
    half.train(until=until)
    save(path, snapshot(half.model, half.optimizer, *until))
    resumed = Run(seed=1)
    torch.rand(3)
    assert resume(load(path), resumed.model, resumed.optimizer) == until
    resumed.train(*until)
    assert same(resumed.bits(), expected)


def test_a_snapshot_is_a_copy_and_serves_twice():
    run = Run()
    run.train(until=(1, 0))
    kept = snapshot(run.model, run.optimizer, 1, 0)
    run.train(1, 0)
    expected = run.bits()
    for seed in 1, 2:
        again = Run(seed=seed)
        resume(kept, again.model, again.optimizer)
        again.train(1, 0)
        assert same(again.bits(), expected)


def test_a_snapshot_of_a_wrapped_model_resumes_a_bare_one(path):
    run, bare = Run(), Run(seed=1)
    run.train(until=(0, 2))
    kept = snapshot(wrapped(run.model), run.optimizer, 0, 2)
    assert list(kept["model"]) == list(run.model.state_dict())
    save(path, kept)
    resume(load(path), bare.model, bare.optimizer)
    assert same(bare.bits(), run.bits())


@pytest.mark.parametrize(
    "change, error, message",
    [
        *[
            (
                lambda kept, name=name: kept.pop(name),
                CheckpointError,
                f"not a snapshot, or one of an older manual_dp: it has no '{name}'; "
                "load_model takes weights alone",
            )
            for name in ("optimizer", "random", "made_of")
        ],
        (
            lambda kept: kept["random"].append(kept["random"][0]),
            CheckpointError,
            "the snapshot is of 2 ranks, this run has 1; load_model takes its weights",
        ),
        (
            lambda kept: kept["made_of"].pop("the generator's class"),
            CheckpointError,
            "the generator's class is missing in the snapshot, Generator here; resume with the ",
        ),
        (
            lambda kept: kept["model"].pop("4.bias"),
            CheckpointError,
            "4.bias is missing",
        ),
        (
            lambda kept: kept["optimizer"]["param_groups"][0]["params"].pop(),
            ValueError,
            "parameter group that doesn't match the size",
        ),
    ],
)
def test_a_snapshot_that_does_not_fit_changes_nothing(change, error, message):
    run, generator = Run(), torch.Generator().manual_seed(1)
    run.train(until=(0, 2))
    kept = snapshot(run.model, run.optimizer, 0, 2, generator)
    change(kept)
    other, own = Run(seed=1), torch.Generator().manual_seed(2)
    other.train(until=(0, 1))
    before, state = pickle.loads(pickle.dumps(other.bits())), own.get_state()
    with pytest.raises(error, match=message):
        resume(kept, other.model, other.optimizer, own)
    assert same(other.bits(), before) and torch.equal(own.get_state(), state)


MADE = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.0}),
}
MADE["RAdam"] = torch.optim.RAdam, MADE["Adam"][1]  # its options have the same names


def trained(kind, *groups, schedule=None, steps=3, **options):
    """Return two layers, their optimizer with a group for each, and its schedule."""
    make, usual = MADE[kind]
    model = small_model()
    own = groups or ({}, {})
    optimizer = make(
        [
            {"params": model[place].parameters(), **extra}
            for place, extra in zip((0, 4), own)
        ],
        **(usual | options),
    )
    schedule = schedule and schedule(optimizer)
    for _ in range(steps):
        model(torch.rand(6, 3, dtype=torch.float64)).sum().backward()
        optimizer.step()
        if schedule:
            schedule.step()
    return model, optimizer


def two_of_a_shape(*groups, extra=()):
    """Return layers A and B, and Adam with a group of layers for each of `groups`."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "AB"})
    optimizer = torch.optim.Adam(
        [{"params": [model[name].weight for name in group]} for group in groups]
        + [{"params": p} for p in extra]
    )
    for p in [*model.parameters(), *extra]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    "saved, given, message",
    [
        (
            lambda: trained("SGD"),
            lambda: trained("SGD", {}, {"lr": 0.5}),
            "group 1: lr is 0.1 in the snapshot, 0.5 here",
        ),
        (
            lambda: trained("Adam"),
            lambda: trained("Adam", {"betas": (0.9, 0.999)}, {}),
            r"group 0: betas is \(0.9, 0.99\) in the snapshot, \(0.9, 0.999\) here",
        ),
        (
            lambda: trained("Adam"),
            lambda: trained("RAdam"),
            "the optimizer's class is Adam in the snapshot, RAdam here",
        ),
        (
            lambda: two_of_a_shape("AB"),
            lambda: two_of_a_shape("BA"),
            "group 0: parameter 0 is A.weight in the snapshot, B.weight here",
        ),
        (
            lambda: two_of_a_shape("AB"),
            lambda: two_of_a_shape("A"),
            "group 0: parameter 1 is B.weight in the snapshot, missing here",
        ),
        (  # parameters that are not the model's
            lambda: two_of_a_shape("A", extra=[torch.ones(3)]),
            lambda: two_of_a_shape("A", extra=[torch.ones(1, 3)]),
            r"group 1: parameter 0 is one of shape \(3,\) in the snapshot, one of "
            r"shape \(1, 3\) here",
        ),
    ],
)
def test_an_optimizer_that_differs_is_refused_and_nothing_changes(
    saved, given, message
):
    kept = snapshot(*saved(), 1, 0)
    assert resume(kept, *saved()) == (1, 0)
    model, optimizer = given()
    before = pickle.dumps((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(
        CheckpointError,
        match=f"^{message}; resume with the same, and set other options afterwards",
    ):
        resume(kept, model, optimizer)
    assert pickle.dumps((model.state_dict(), optimizer.state_dict())) == before


def falls(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=9)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_what_a_schedule_has_changed_is_put_back_and_no_difference(kind):
    model, optimizer = trained(kind, schedule=one_cycle)  # momentum, betas, too
    kept = snapshot(model, optimizer, 1, 0)
    again, other = trained(kind, schedule=one_cycle, steps=0)
    assert other.param_groups[0]["lr"] != optimizer.param_groups[0]["lr"]
    assert resume(kept, again, other) == (1, 0)
    assert same(other.state_dict(), optimizer.state_dict())


def test_a_rate_from_which_a_schedule_began_is_compared():
    kept = snapshot(*trained("SGD", schedule=falls), 1, 0)
    for lr, schedule in (0.2, falls), (0.0125, None):
        with pytest.raises(
            CheckpointError, match=f"lr is 0.1 in the snapshot, {lr} here"
        ):
            resume(kept, *trained("SGD", schedule=schedule, steps=0, lr=lr))


def test_a_group_may_have_its_own_rate_and_a_rate_may_be_a_tensor():
    kept = snapshot(*trained("SGD", {"lr": torch.tensor(0.1)}, {"lr": 0.5}), 1, 0)
    assert resume(kept, *trained("SGD", {"lr": 0.1}, {"lr": 0.5})) == (1, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_on_a_gpu_draws_the_same_again(path):
    whole = Run(device="cuda")
    whole.train()
    expected = dict(whole.model.state_dict())
    half = Run(device="cuda")
    half.train(until=(1, 3))
    save(path, snapshot(half.model, half.optimizer, 1, 3))
    resumed = Run(seed=1, device="cuda")
    resume(load(path, "cuda"), resumed.model, resumed.optimizer)
    resumed.train(1, 3)
    assert same(dict(resumed.model.state_dict()), expected)


def test_each_rank_gets_its_own_random_state_again(path):
    def draw_again(path):
        generator = torch.Generator().manual_seed(20 + dist.get_rank())
        torch.manual_seed(10 + dist.get_rank())
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        save(path, snapshot(model, optimizer, 4, 2, generator))
        first = torch.rand(()).item(), torch.rand((), generator=generator).item()
        place = resume(load(path), model, optimizer, generator)
        again = torch.rand(()).item(), torch.rand((), generator=generator).item()
        return place, first, again

    results = run_ranks(draw_again, 2, str(path))
    for place, first, again in results:
        assert place == (4, 2) and first == again
    assert len({number for _, first, _ in results for number in first}) == 4


# several ranks


def told(function, *args):
    """Return what the call says when it refuses."""
    with pytest.raises(CheckpointError) as caught:
        function(*args)
    return str(caught.value)


def by_rank(zero, one):
    return one if dist.get_rank() else zero


def test_what_differs_between_ranks_is_named_on_every_rank():
    def take():
        number = dist.get_rank() + 1
        rate = {"lr": number / 100}
        return (
            told(snapshot, *trained("Adam", steps=0), number, 0),
            told(snapshot, *trained("Adam", {}, rate, steps=0), 3, 0),
        )

    text = "could not take a snapshot: {} on rank 1, {} on rank 0; give every rank the same"
    assert (
        run_ranks(take, 2)
        == [
            (
                text.format("the place is epoch 2, step 0", "epoch 1, step 0"),
                text.format("group 1: lr is 0.02", "0.01"),
            )
        ]
        * 2
    )


def test_a_resume_that_one_rank_refuses_changes_nothing_on_any_rank():
    def try_two():
        model, optimizer = trained("Adam")
        kept = snapshot(model, optimizer, 3, 0)
        again, other = trained("Adam", steps=1)
        before = pickle.dumps((again.state_dict(), other.state_dict()))
        refused = told(resume, kept, again, other, by_rank(None, torch.Generator()))
        elsewhere = told(resume, kept | {"epoch": by_rank(3, 4)}, again, other)
        assert pickle.dumps((again.state_dict(), other.state_dict())) == before
        return refused, elsewhere

    own = (
        "the generator's class is NoneType in the snapshot, Generator here; resume with "
        "the same, and set other options afterwards"
    )
    other = (
        "could not resume: the place is epoch 4, step 0 on rank 1, epoch 3, step 0 on "
        "rank 0; give every rank the same"
    )
    assert run_ranks(try_two, 2) == [
        (f"rank 1 could not resume: CheckpointError: {own}", other),
        (own, other),
    ]
