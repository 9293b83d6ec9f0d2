"""A watch notes what goes in, what is summed and what is applied, and changes nothing."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.hooks import Diary, Watch, rates, read_diaries
from tests.support.broken_training import mean_loss, net, rows, sgd


@pytest.fixture
def doubles():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def watched(step, *layers, n=6, make=sgd):
    """Return the watch after `step(model, optimizer, X, y)`, and the minibatch."""
    model, optimizer = make(net(*layers))
    X, y = rows(n)(0)
    watch = Watch(model)
    with watch.on():
        watch.begin(0, X, y)
        step(model, optimizer, X, y)
    return watch, X, y


def halves(model, optimizer, X, y):
    for part in (slice(0, 3), slice(3, 6)):
        mean_loss(model, X[part], y[part]).backward()
    optimizer.step()


def test_rows_targets_and_updates_are_noted(doubles):
    watch, X, y = watched(halves)
    assert watch.note.all_rows == [[0, 1, 2], [3, 4, 5]] and watch.note.size == 6
    assert [f.targets.tolist() for f in watch.forwards] == [
        y[:3].tolist(), y[3:].tolist()]
    assert (watch.note.updates, watch.note.kind, watch.note.plain) == (1, "SGD", True)
    assert watch.note.rates == dict.fromkeys(range(4), 0.1) and watch.until == 2
    grads = watch.sketch([p.grad for p in watch.params])
    assert torch.equal(watch.note.used, grads)
    assert watch.updated == bit_hashes(watch.params) != bit_hashes(watch.before)


def test_what_is_not_rows_of_the_minibatch_and_what_has_no_gradient(doubles):
    def step(model, optimizer, X, y):
        model(2 * X)
        with torch.no_grad():
            model(X)
    watch, *_ = watched(step)
    assert watch.note.all_rows == [None] and watch.note.updates == 0


@pytest.mark.parametrize("options, plain", [
    ({}, True), ({"momentum": 0.9}, False), ({"weight_decay": 0.1}, False)])
def test_only_sgd_without_a_memory_is_plain(doubles, options, plain):
    watch, *_ = watched(halves, make=lambda model: sgd(model, **options))
    assert watch.note.plain is plain


def test_an_optimizer_of_other_tensors_and_a_second_update_are_counted(doubles):
    def step(model, optimizer, X, y):
        _, other = sgd(net())
        for one in (other, optimizer, optimizer):
            mean_loss(model, X, y).backward()
            one.step()
    watch, *_ = watched(step)
    assert (watch.note.foreign, watch.note.updates, watch.until) == (1, 2, 2)


def test_dropout_is_off_while_it_is_watched_and_hooks_are_gone_afterwards(doubles):
    found = []

    def step(model, optimizer, X, y):
        found.append(torch.equal(model(X), model(X)))
    real = dist.all_reduce, DistributedSampler.__iter__
    watch, *_ = watched(step, nn.Dropout(0.5))
    assert found == [True]
    assert real == (dist.all_reduce, DistributedSampler.__iter__)
    assert not any(m._forward_pre_hooks for m in watch.module.modules())


def test_sums_and_samplers_are_noted(doubles, monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: "done")
    answers = []

    def step(model, optimizer, X, y):
        answers.append(dist.all_reduce(torch.ones(3, 2)))
        answers.append(list(DistributedSampler(X, 2, 1, shuffle=False, seed=5)))
    watch, *_ = watched(step)
    assert answers == ["done", [1, 3, 5]] and watch.note.summed == 6
    [one] = watch.samplers
    assert (one.rows, one.seed, one.shuffle, one.world_size, one.rank) == (
        6, 5, False, 2, 1)


def test_a_copy_of_the_model_is_not_watched(doubles):
    def step(model, optimizer, X, y):
        copy.deepcopy(model)
        model(X)
    watch, *_ = watched(step)
    assert watch.note.all_rows == [[0, 1, 2, 3, 4, 5]]


def test_rates_are_those_of_the_parameters_that_are_held():
    model = net()
    first, *_, last = model.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [last]}], 0.1)
    index = {id(p): i for i, p in enumerate(model.parameters())}
    assert rates(optimizer, index) == {0: 0.5, 3: 0.1}
    assert rates(optimizer, {}) == {}


def test_a_diary_says_where_its_rank_is(tmp_path):
    Diary(tmp_path / "new", 0)
    Diary(tmp_path / "new", 11).note(step=2, forwards=1)
    assert read_diaries(tmp_path / "new") == {
        0: {"step": None, "forwards": 0, "in": "make_model"},
        11: {"step": 2, "forwards": 1, "in": "make_model"}}
    assert read_diaries(tmp_path / "none") == {}
