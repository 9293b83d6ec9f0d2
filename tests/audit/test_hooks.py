"""A watch notes what goes in, what is summed and what is applied, and changes nothing."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.hooks import Watch, rates
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
    watch = Watch([model])
    with watch.on():
        watch.begin(0, (X, y))
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
    now = bit_hashes(watch.params)
    assert watch.updated == dict(enumerate(now)) and now != bit_hashes(watch.before)


def test_what_is_not_rows_of_the_minibatch_and_what_has_no_gradient(doubles):
    def step(model, optimizer, X, y):
        model(2 * X).sum().backward()
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


def test_hooks_are_gone_afterwards(doubles):
    def patched():
        return (dist.all_reduce, DistributedSampler.__iter__,
                clip_grad._clip_grads_with_norm_)
    real = patched()

    def step(model, optimizer, X, y):
        assert real != patched()
        halves(model, optimizer, X, y)
    watch, *_ = watched(step, nn.Dropout(0.5))
    assert real == patched()
    assert not any(m._forward_pre_hooks for m in watch.modules[0].modules())
    assert not any(p._backward_hooks for p in watch.params)


def test_each_backward_is_heard_as_it_comes_and_what_stood_before_it(doubles):
    found = []

    def step(model, optimizer, X, y):
        for part in (slice(0, 3), slice(3, 6)):
            other = copy.deepcopy(model)
            found.append(torch.autograd.grad(mean_loss(other, X[part], y[part]),
                                             list(other.parameters())))
            mean_loss(model, X[part], y[part]).backward()
        for p in model.parameters():
            p.grad *= 7  # what is done to .grad afterwards is not what came
        optimizer.step()
    watch, *_ = watched(step)
    note = watch.end()
    for piece, grads in zip(note.pieces, found, strict=True):
        torch.testing.assert_close(piece, watch.sketch(grads), rtol=0, atol=1e-12)
    torch.testing.assert_close(note.used, 7 * sum(note.pieces), rtol=1e-9, atol=1e-12)
    assert note.left is None and note.unreached == []


def test_what_was_not_cleared_is_what_is_left(doubles):
    def step(model, optimizer, X, y):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        halves(model, optimizer, X, y)
    watch, *_ = watched(step)
    ones = watch.sketch(map(torch.ones_like, watch.params))
    assert torch.equal(watch.end().left, ones)


@pytest.mark.parametrize("before, early", [(False, False), (True, True)])
def test_clipping_is_noted_and_whether_gradients_change_after_it(doubles, before, early):
    def step(model, optimizer, X, y):
        mean_loss(model, X, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if before:
            for p in model.parameters():
                p.grad *= 2
        optimizer.step()
    watch, *_ = watched(step)
    [clip] = watch.note.clips
    assert (clip.most, watch.note.early) == (1e-3, early) and clip.norm > 1e-3
    # the gradient before it was clipped is the one to judge, if that was right
    used = watch.note.used.norm()
    assert bool(used > 1e-2) is not early


def test_a_parameter_that_nothing_came_to_is_unreached(doubles):
    def step(model, optimizer, X, y):
        model[0](X).sum().backward()
        optimizer.step()
    watch, *_ = watched(step)
    assert watch.end().unreached == [2, 3]


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


def test_seeds_are_noted_in_their_order(doubles):
    def step(model, optimizer, X, y):
        torch.manual_seed(3)
        torch.manual_seed(5)
    real = torch.manual_seed
    watch, *_ = watched(step)
    assert watch.note.seeded == (3, 5) and torch.manual_seed is real


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
