import itertools
import pickle
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from manual_dp.data import Batches
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
        (["W", "b"], ["W", "b"]),
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


@pytest.mark.parametrize("saved_in", [0, 1, 2])
@pytest.mark.parametrize("loaded_in", [0, 1, 2])
def test_weights_fit_whatever_is_wrapped(path, saved_in, loaded_in):
    source, target = small_model(1), small_model(2)
    save(path, wrapped(source, saved_in).state_dict())
    load_model(wrapped(target, loaded_in), load(path))
    assert same(dict(target.state_dict()), dict(source.state_dict()))


def test_a_model_that_calls_its_part_module_is_no_exception():
    source, target = ({"module": small_model(seed)} for seed in (1, 2))
    source, target = nn.ModuleDict(source), nn.ModuleDict(target)
    load_model(target, wrapped(source).state_dict())
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
        (lambda state: state.clear(), "0.weight is missing in the checkpoint"),
        (lambda state: (state.pop("4.bias"), state.pop("1.bias")), "1.bias is missing"),
    ],
)
@pytest.mark.parametrize("loaded_in", [0, 1])
def test_weights_that_do_not_fit_are_named_and_nothing_changes(
    change, message, loaded_in
):
    state, model = dict(small_model(1).state_dict()), small_model(2)
    change(state)
    with pytest.raises(CheckpointError, match="^" + message):
        load_model(wrapped(model, loaded_in), state)
    assert same(dict(model.state_dict()), dict(small_model(2).state_dict()))


# snapshot and resume

OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}
EPOCHS, STEPS = 3, 5


class Run:
    """A small run on rank 1 of 2: dropout draws from torch's generator."""

    def __init__(self, optimizer="momentum", seed=0, device="cpu"):
        generator = torch.Generator().manual_seed(5)
        X = torch.rand(40, 3, dtype=torch.float64, generator=generator)
        y = torch.rand(40, 2, dtype=torch.float64, generator=generator)
        data = TensorDataset(X.to(device), y.to(device))
        self.sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=7)
        self.loader = DataLoader(
            data, batch_size=4, sampler=self.sampler, generator=torch.Generator()
        )
        self.model = small_model(seed).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def step(self, X, y):
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(X), y).backward()
        self.optimizer.step()

    def train(self, epoch=0, step=0, until=(EPOCHS, 0)):
        """Take the steps from (epoch, step) to `until`."""
        while (epoch, step) < until:
            self.sampler.set_epoch(epoch)
            for X, y in itertools.islice(self.loader, step, None):
                if (epoch, step) == until:
                    return
                self.step(X, y)
                step += 1
            epoch, step = epoch + 1, 0

    def bits(self):
        return [
            dict(self.model.state_dict()),
            self.optimizer.state_dict(),
            torch.get_rng_state(),
        ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("until", [(0, 0), (1, 0), (1, 3), (2, STEPS - 1)])
def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(
    path, optimizer, until
):
    whole = Run(optimizer)
    whole.train()
    expected = whole.bits()
    half = Run(optimizer)
    half.train(until=until)
    save(path, snapshot(half.model, half.optimizer, *until))
    resumed = Run(optimizer, seed=1)
    torch.rand(3)
    assert resume(load(path), resumed.model, resumed.optimizer) == until
    resumed.train(*until)
    assert same(resumed.bits(), expected)
    other = Run(optimizer)  # the bits do depend on the random state
    torch.rand(3)
    other.train()
    assert not same(other.bits()[0], expected[0])


def test_a_shuffling_generator_goes_on_where_it_was(path):
    def orders(batches):
        return [X.tolist() for X, _ in batches]

    X = torch.arange(20)
    whole = Batches(X, X, 3, torch.Generator().manual_seed(1))
    run = Run()
    first, second = orders(whole), orders(whole)
    half = Batches(X, X, 3, torch.Generator().manual_seed(1))
    assert orders(half) == first
    save(path, snapshot(run.model, run.optimizer, 1, 0, half.generator))
    resumed = Batches(X, X, 3, torch.Generator().manual_seed(2))
    assert resume(load(path), run.model, run.optimizer, resumed.generator) == (1, 0)
    assert orders(resumed) == second != first


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_snapshot_is_a_copy_and_serves_twice(optimizer):
    run = Run(optimizer)
    run.train(until=(1, 0))
    kept = snapshot(run.model, run.optimizer, 1, 0)
    run.train(1, 0)
    expected = run.bits()
    for seed in 1, 2:
        again = Run(optimizer, seed=seed)
        assert resume(kept, again.model, again.optimizer) == (1, 0)
        again.train(1, 0)
        assert same(again.bits(), expected)


def test_taking_a_snapshot_changes_nothing():
    run, generator = Run(), torch.Generator().manual_seed(1)
    run.train(until=(0, 2))
    before, state = run.bits(), generator.get_state()
    before = pickle.loads(pickle.dumps(before))
    snapshot(run.model, run.optimizer, 0, 2, generator)
    assert same(run.bits(), before) and torch.equal(generator.get_state(), state)


def test_a_snapshot_of_a_wrapped_model_resumes_a_bare_one(path):
    run, bare = Run(), Run(seed=1)
    run.train(until=(0, 2))
    kept = snapshot(wrapped(run.model), run.optimizer, 0, 2) | {"best": 0.5}
    assert list(kept["model"]) == list(run.model.state_dict())
    save(path, kept)
    assert resume(load(path), bare.model, bare.optimizer) == (0, 2)
    assert same(bare.bits(), run.bits())
    assert resume(load(path), wrapped(bare.model), bare.optimizer) == (0, 2)
    assert load(path)["best"] == 0.5


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            lambda kept: kept.pop("optimizer"),
            CheckpointError,
            "not a snapshot, or one of an older manual_dp: it has no 'optimizer'; load_model ",
        ),
        (
            lambda kept: kept.pop("random"),
            CheckpointError,
            "not a snapshot, or one of an older manual_dp: it has no 'random'",
        ),
        (
            lambda kept: kept.pop("made_of"),
            CheckpointError,
            "not a snapshot, or one of an older manual_dp: it has no 'made_of'",
        ),
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
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}
# the state and the options of these have the names of Adam's
MADE |= {
    kind: (getattr(torch.optim, kind), MADE["Adam"][1])
    for kind in ("RAdam", "NAdam", "Adamax")
}


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


@pytest.mark.parametrize(
    "kind, other, message",
    [
        ("SGD", {"lr": 0.001}, "group 0: lr is 0.1 in the snapshot, 0.001 here"),
        (
            "SGD",
            {"momentum": 0.0},
            "group 0: momentum is 0.9 in the snapshot, 0.0 here",
        ),
        (
            "SGD",
            {"nesterov": True},
            "group 0: nesterov is False in the snapshot, True here",
        ),
        (
            "SGD",
            {"lr": torch.tensor(0.2)},
            "group 0: lr is 0.1 in the snapshot, 0.2000",
        ),
        ("SGD", [{}, {"lr": 0.5}], "group 1: lr is 0.1 in the snapshot, 0.5 here"),
        (
            "Adam",
            {"betas": (0.9, 0.999)},
            r"group 0: betas is \(0.9, 0.99\) in the snapshot, \(0.9, 0.999\) here",
        ),
    ],
)
def test_options_that_differ_are_named_and_nothing_changes(kind, other, message):
    kept = snapshot(*trained(kind), 1, 0)
    groups, options = ([], other) if isinstance(other, dict) else (other, {})
    model, optimizer = trained(kind, *groups, steps=1, **options)
    before = pickle.dumps((model.state_dict(), optimizer.state_dict()))
    random = torch.get_rng_state()
    with pytest.raises(
        CheckpointError,
        match=message + ".*; resume with the same, and set other options afterwards",
    ):
        resume(kept, model, optimizer)
    assert pickle.dumps((model.state_dict(), optimizer.state_dict())) == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    "saved, given",
    [
        ("Adam", "SGD"),
        ("SGD", "Adam"),
        ("Adam", "RAdam"),
        ("Adam", "NAdam"),
        ("NAdam", "Adam"),
        ("Adam", "Adamax"),
    ],
)
def test_a_snapshot_of_another_kind_of_optimizer_is_refused(saved, given):
    kept, (model, optimizer) = snapshot(*trained(saved), 1, 0), trained(given)
    before = pickle.dumps((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(
        CheckpointError,
        match=f"the optimizer's class is {saved} in the "
        f"snapshot, {given} here; resume with the same, and set",
    ):
        resume(kept, model, optimizer)
    assert pickle.dumps((model.state_dict(), optimizer.state_dict())) == before


def test_an_option_that_the_snapshot_does_not_know_is_named():
    kept = snapshot(*trained("SGD"), 1, 0)
    del kept["made_of"]["group 1: nesterov"]  # as of another torch
    with pytest.raises(
        CheckpointError,
        match="group 1: nesterov is missing in the snapshot, False here",
    ):
        resume(kept, *trained("SGD"))


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
            ["AB"],
            ["BA"],
            "group 0: parameter 0 is A.weight in the snapshot, B.weight here",
        ),
        (
            ["A", "B"],
            ["B", "A"],
            "group 0: parameter 0 is A.weight in the snapshot, B.weight",
        ),
        (
            ["AB"],
            ["A"],
            "group 0: parameter 1 is B.weight in the snapshot, missing here",
        ),
        (
            ["A"],
            ["A", "B"],
            "group 1: parameter 0 is missing in the snapshot, B.weight here",
        ),
    ],
)
@pytest.mark.parametrize("times", [0, 1])
def test_an_optimizer_with_other_parameters_is_refused(saved, given, message, times):
    model, optimizer = two_of_a_shape(*saved)
    kept = snapshot(wrapped(model, times), optimizer, 1, 0)
    assert resume(kept, *two_of_a_shape(*saved)) == (1, 0)
    model, optimizer = two_of_a_shape(*given)
    before = pickle.dumps((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(CheckpointError, match=f"^{message}"):
        resume(kept, model, optimizer)
    assert pickle.dumps((model.state_dict(), optimizer.state_dict())) == before


def test_a_parameter_that_is_not_the_models_is_compared_by_its_shape():
    kept = snapshot(*two_of_a_shape("A", extra=[torch.ones(3)]), 1, 0)
    resume(kept, *two_of_a_shape("A", extra=[torch.zeros(3)]))
    with pytest.raises(
        CheckpointError,
        match=r"group 1: parameter 0 is one of shape "
        r"\(3,\) in the snapshot, one of shape \(1, 3\) here",
    ):
        resume(kept, *two_of_a_shape("A", extra=[torch.ones(1, 3)]))


SCHEDULES = {
    "falls": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    "warms up": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer),
    "one cycle, momentum too": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.3, total_steps=9
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_what_a_schedule_has_changed_is_put_back_and_no_difference(kind, name):
    model, optimizer = trained(kind, schedule=SCHEDULES[name])
    kept = snapshot(model, optimizer, 1, 0)
    again, other = trained(kind, schedule=SCHEDULES[name], steps=0)
    assert other.param_groups[0]["lr"] != optimizer.param_groups[0]["lr"]
    assert resume(kept, again, other) == (1, 0)
    assert same(other.state_dict(), optimizer.state_dict())


def test_a_rate_from_which_a_schedule_began_is_compared():
    kept = snapshot(*trained("SGD", schedule=SCHEDULES["falls"]), 1, 0)
    for lr, schedule in (0.2, SCHEDULES["falls"]), (0.2, None), (0.0125, None):
        with pytest.raises(
            CheckpointError, match=f"lr is 0.1 in the snapshot, {lr} here"
        ):
            resume(kept, *trained("SGD", schedule=schedule, steps=0, lr=lr))
    with pytest.raises(
        CheckpointError, match="momentum is 0.9 in the snapshot, 0.5 here"
    ):
        resume(kept, *trained("SGD", schedule=SCHEDULES["falls"], momentum=0.5))


@pytest.mark.parametrize(
    "saved, given",
    [
        ([{"lr": 0.1}, {"lr": 0.5}], [{"lr": 0.1}, {"lr": 0.5}]),
        ([{}, {}], [{"lr": torch.tensor(0.1)}, {}]),
        ([{"lr": torch.tensor(0.1)}, {}], [{}, {}]),
    ],
)
def test_a_group_may_have_its_own_rate_and_a_rate_may_be_a_tensor(saved, given):
    kept = snapshot(*trained("SGD", *saved), 1, 0)
    assert resume(kept, *trained("SGD", *given)) == (1, 0)


def test_a_schedule_by_hand_keeps_its_first_rate_in_the_group():
    model, optimizer = trained("SGD")
    optimizer.param_groups[0]["lr"] = 0.05
    with pytest.raises(CheckpointError, match="lr is 0.05 in the snapshot, 0.1 here"):
        resume(snapshot(model, optimizer, 1, 0), *trained("SGD", steps=0))
    optimizer.param_groups[0]["initial_lr"] = 0.1
    again, other = trained("SGD", steps=0)
    resume(snapshot(model, optimizer, 1, 0), again, other)
    assert [group["lr"] for group in other.param_groups] == [0.05, 0.1]


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
    run = Run()
    with pytest.raises(CheckpointError, match="is of 2 ranks, this run has 1"):
        resume(load(path), run.model, run.optimizer)


# several ranks


def told(function, *args):
    """Return what the call says when it refuses."""
    with pytest.raises(CheckpointError) as caught:
        function(*args)
    return str(caught.value)


def by_rank(zero, one):
    return one if dist.get_rank() else zero


@pytest.mark.parametrize(
    "name, zero, one",
    [
        ("the place", "epoch 3, step 0", "epoch 4, step 0"),
        ("the place", "epoch 3, step 0", "epoch 3, step 7"),
        ("the generator's class", "Generator", "NoneType"),
        ("the optimizer's class", "Adam", "RAdam"),
        ("group 1: lr", "0.01", "0.02"),
        ("group 0: parameter 0", "0.weight", "4.weight"),
    ],
)
def test_what_differs_between_ranks_is_named_on_every_rank(name, zero, one):
    def take():
        value = by_rank(zero, one)
        kind = value if name == "the optimizer's class" else "Adam"
        model, optimizer = trained(
            kind, {}, {"lr": 0.02} if value == "0.02" else {}, steps=0
        )
        if value == "4.weight":
            optimizer.param_groups.reverse()
        generator = torch.Generator() if value == "Generator" else None
        return told(
            snapshot,
            model,
            optimizer,
            4 if "epoch 4" in value else 3,
            7 if "step 7" in value else 0,
            generator,
        )

    assert (
        run_ranks(take, 2)
        == [
            f"could not take a snapshot: {name} is {one} on rank 1, {zero} on rank 0; give "
            "every rank the same"
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
