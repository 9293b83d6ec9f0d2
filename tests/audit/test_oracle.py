"""The oracle's gradients are autograd's on the same rows, and leave the model alone."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import audit, hypotheses, oracle
from manual_dp.audit.hooks import Watch
from tests.support.broken_training import Dropping, case, ddp, net, ordinary, rows


def watched(model, *parts, n=6):
    """Return a watch of forwards on these rows of the minibatch, and X, y."""
    X, y = rows(n)(0)
    watch = Watch([model.double()])
    with watch.on():
        watch.begin(0, (X, y))
        for part in parts:
            model(X[part])
    return watch, X, y


def terms(forward):
    return len(forward.rows)


def expected(model, X, y):
    return torch.autograd.grad(F.cross_entropy(model(X), y, reduction="sum"),
                               list(model.parameters()))


def test_the_gradient_is_that_of_the_sum_over_all_forwards():
    model = net()
    watch, X, y = watched(model, [0, 3], [], [1, 2, 5])
    mine = [0, 3, 1, 2, 5]
    right = expected(model, X[mine], y[mine])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()  # the weights from before the step are those that count
    grads = oracle.gradient(watch, watch.forwards, F.cross_entropy, terms)
    torch.testing.assert_close(grads, list(right), rtol=0, atol=1e-12)
    assert [p.grad for p in model.parameters()] == [None] * 4


def test_what_is_frozen_or_not_used_has_no_gradient():
    model = net(nn.Linear(8, 8).requires_grad_(False))
    model.spare = nn.Linear(2, 2)
    model.forward = lambda X: model[3](model[2](model[1](model[0](X))))
    watch, *_ = watched(model, [0, 1])
    grads = oracle.gradient(watch, watch.forwards, F.cross_entropy, terms)
    assert [g is None for g in grads] == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 2
    none = oracle.gradient(watch, [], F.cross_entropy, terms)
    assert none == [None] * 8


def test_modes_buffers_and_random_numbers_are_those_of_the_forward():
    model = net(nn.BatchNorm1d(8))
    watch, X, y = watched(model, [0, 1, 2])
    model.eval()
    before, state = model[1].running_mean.clone(), torch.get_rng_state()
    oracle.gradient(watch, watch.forwards, F.cross_entropy, terms)
    assert not any(m.training for m in model.modules())
    assert torch.equal(model[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    watch, X, y = watched(Dropping(), [0, 1, 2])
    first, second = (oracle.gradient(watch, watch.forwards, F.cross_entropy, terms)
                     for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_micro_batches_of_other_sizes_count_by_their_rows():
    def step(model, optimizer, X, y):
        mine = torch.arange(10)[dist.get_rank()::2]
        optimizer.zero_grad()
        for i, part in enumerate(mine.split(2)):  # 2, 2, and 1 that counts as much
            with model.no_sync() if i < 2 else contextlib.nullcontext():
                (F.cross_entropy(model(X[part]), y[part]) / 3).backward()
        optimizer.step()
    [found] = audit(ddp, rows(10), step, loss=F.cross_entropy).findings
    assert (found.code, found.step) == ("uneven-shards", 0)


def test_a_loss_that_cannot_be_had_is_an_error_that_says_so():
    watch, *_ = watched(net(), [0, 1])
    with pytest.raises(RuntimeError, match=r"cannot be had \(no\)"):
        oracle.gradient(watch, watch.forwards, refuse, terms)


def refuse(y_hat, y):
    raise ValueError("no")


def test_a_loss_that_does_not_fit_the_output_is_said_and_others_are_asked():
    report = audit(**case(ddp, ordinary), steps=1,
                   loss=lambda y_hat, y: F.mse_loss(y_hat, y.double()))
    assert not report.findings and not report.unchecked
    assert report.remarks[0].startswith("`loss` was not asked: the loss of the "
                                        "model's output cannot be had")


# other rows' targets

def dealt(rank, n):
    return list(range(rank, 12, n))


def cut(rank, n):
    return [row % 12 for row in range(12 // n * rank, 12 // n * (rank + 1))]


def shifted(split, by):
    return lambda rank, n: [(row - by) % 12 for row in split(rank, n)]


@pytest.mark.parametrize("of_X, of_y, how", [
    (dealt, cut, "that are cut into chunks, as X is not"),
    (cut, dealt, "that are dealt out in turns, as X is not"),
    (dealt, lambda rank, n: cut(0, n), "of the minibatch's first rows"),
    (dealt, shifted(dealt, 1), "that are shifted by 1 row against X"),
    (cut, shifted(cut, -1), "that are shifted by -1 row against X"),
    (cut, shifted(cut, 4), "that are shifted by 4 rows against X"),
    (cut, shifted(cut, -4), "that are shifted by -4 rows against X")])
def test_it_is_said_whose_targets_were_taken(of_X, of_y, how):
    def make_model():
        torch.manual_seed(0)
        return DistributedDataParallel(nn.Linear(5, 3))

    def make_batch(t):
        draws = torch.Generator().manual_seed(t)
        return torch.rand(12, 5, generator=draws), torch.rand(12, 3, generator=draws)

    def step(model, X, y):
        rank, n = dist.get_rank(), dist.get_world_size()
        model.zero_grad()
        F.mse_loss(model(X[of_X(rank, n)]), y[(of_y if n > 1 else of_X)(rank, n)]
                   ).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    report = audit(make_model, make_batch, step, 3, steps=1)
    [found], [notes] = report.findings, report.evidence.steps
    assert (found.code, found.says) == (
        "labels", f"ranks 0, 1 and 2: the gradient of targets {how}")
    right = hypotheses.single_device(notes)
    others = [one for one in hypotheses.hypotheses(0, notes) if one.code == "labels"]
    assert others and all(hypotheses.distance(right, one.basis) > 1e-6
                          for one in others), "the rows' own targets are no others"
