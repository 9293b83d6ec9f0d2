"""A script that is run once more computes in float64, and each draw of it is noted."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import script
from manual_dp.audit.doubled import doubled
from manual_dp.audit.records import Step

ROWS = TensorDataset(torch.ones(12, 3))


@pytest.fixture
def run_again():
    """Be in a script that is run once more, on one device for two ranks."""
    before = torch.get_default_dtype(), nn.SyncBatchNorm.forward, DataLoader.__init__
    with doubled(2):
        yield
    torch.set_default_dtype(before[0])
    assert (nn.SyncBatchNorm.forward, DataLoader.__init__) == before[1:]


def test_what_is_shorter_becomes_float64(run_again):
    one = torch.ones(2)
    made = [one, one.half(), one.bfloat16(), one.to(torch.float16), one.float(),
            torch.from_numpy(np.ones(2, "f4")), torch.as_tensor(np.ones(2, "f2")),
            torch.zeros(2, dtype=torch.float32), nn.Linear(2, 2).weight,
            *next(iter(DataLoader(ROWS)))]
    assert {t.dtype for t in made} == {torch.float64}
    assert torch.from_numpy(np.ones(2, "i4")).dtype == torch.int32


@pytest.mark.parametrize("make", [nn.BatchNorm1d, nn.SyncBatchNorm])
@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norm_takes_no_statistics_of_a_batch(run_again, make, tracks):
    norm = make(3, track_running_stats=tracks)
    X = torch.tensor([[1.0, 2, 3], [4, 5, 9]])
    torch.testing.assert_close(norm(X), X / (1 + 1e-5) ** 0.5)


@pytest.mark.parametrize("options, size", [
    ({"batch_size": 3}, 6), ({}, 2), ({"batch_size": None}, None),
    ({"batch_sampler": BatchSampler(SequentialSampler(ROWS), 3, False)}, 3)])
def test_a_loader_gives_the_rows_of_all_ranks(run_again, options, size):
    [X] = next(iter(DataLoader(ROWS, **options)))
    assert X.shape == ((size, 3) if size else (3,))


def drawn(act):
    """Return what is noted at the update of a step in which `act()` is called."""
    note = Step(0)
    followed = SimpleNamespace(
        run=SimpleNamespace(steps=[]), watch=SimpleNamespace(note=note))
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    script.FOLLOWED.append(followed)
    try:
        act()
        optimizer.step()  # of this it is not known when it began
        act()
        optimizer.step()
        optimizer.step()
    finally:
        script.FOLLOWED.remove(followed)
    _, one, after = note.random
    assert after == (False, 0)
    return one


@pytest.mark.parametrize("act", [
    lambda: torch.rand(2), lambda: random.random(), lambda: np.random.rand(),
    lambda: torch.ones(3).uniform_()])
def test_a_draw_is_noted(run_again, act):
    state, own = drawn(act)
    assert state and not own


@pytest.fixture
def in_a_step(run_again):
    """Be in a step of it."""
    watch = SimpleNamespace(begin=lambda t: None, note=Step(0), wanders=False)
    followed = SimpleNamespace(run=SimpleNamespace(steps=[]), watch=watch, close=0,
                               begun=0, _tell=lambda **_: None)
    script.Followed._begin(followed)
    script.FOLLOWED.append(followed)
    script.Followed._forward(followed, 1)
    yield
    script.FOLLOWED.remove(followed)


def test_in_steps_every_row_is_drawn_alike_and_no_generator_moves_on(in_a_step):
    state = torch.get_rng_state()
    for act in (lambda n: torch.rand(n, 2), lambda n: torch.randn(n), torch.randperm,
                lambda n: torch.randint(7, (n,)), lambda n: torch.zeros(n).normal_(),
                lambda n: torch.bernoulli(torch.full((n,), 0.4))):
        assert torch.equal(act(2), act(4)[:2])
    assert torch.equal(state, torch.get_rng_state())
    assert drawn(lambda: torch.rand(3)) == (False, 0)


def test_in_steps_ranks_are_seeded_alike(in_a_step):
    def numbers(seed):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        return random.random(), np.random.rand(), torch.initial_seed()
    assert numbers(1) == numbers(2)


@pytest.mark.parametrize("fixes", [False, True])
def test_a_generator_of_the_scripts_own_may_be_fixed_too_but_for_places(fixes):
    before = torch.get_default_dtype()
    with doubled(1, fixes):
        own = torch.Generator()
        followed = SimpleNamespace(watch=SimpleNamespace(note=Step(0)))
        script.FOLLOWED.append(followed)
        next(iter(DataLoader(ROWS)))  # the steps begin
        one, other = (torch.rand(2, generator=own.manual_seed(n)) for n in (1, 2))
        assert torch.equal(one, other) == fixes
        one, other = (torch.randperm(9, generator=own.manual_seed(n)) for n in (1, 2))
        assert not torch.equal(one, other)
        script.FOLLOWED.remove(followed)
    torch.set_default_dtype(before)


@pytest.mark.parametrize("act", [
    lambda: None, lambda: torch.manual_seed(3), lambda: random.seed(3),
    lambda: np.random.seed(3), lambda: iter(DataLoader(ROWS)),
    lambda: next(iter(DataLoader(ROWS, shuffle=True))),
    lambda: next(iter(DataLoader(ROWS, sampler=DistributedSampler(ROWS, 2, 0))))])
def test_a_seed_is_no_draw_and_a_loaders_are_excused(run_again, act):
    assert drawn(act) == (False, 0)


def test_what_a_generator_of_the_scripts_own_draws_is_told_by_its_numbers(run_again):
    def act(seed):
        return lambda: torch.rand(2, generator=torch.Generator().manual_seed(seed))
    assert drawn(act(1)) == drawn(act(1)) != drawn(act(2))
    assert drawn(act(1))[0] is False
