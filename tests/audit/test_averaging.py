"""Ranks that train on their own and average weights: accused only if they do not."""

import contextlib
import io
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import (
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch
from manual_dp.ranks import run_ranks
from tests.support.broken_training import average, mean_loss, net, sgd
from tests.support.scripted import batches, ddp, nothing, report_on, train

ALONE = "whether it is one device's training"


def to_mean(p):
    dist.all_reduce(p.data)
    p.data /= dist.get_world_size()


def to_mean_of_copies(p):
    copies = [torch.empty_like(p) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, p.detach().contiguous())
    p.copy_(sum(copies) / len(copies))


def local(every=1, send=to_mean, adam=False, change=nothing, seed=None, times=1):
    """Return a script whose ranks train on their own, and `send` each parameter."""
    def script():
        model = net(seed=dist.get_rank() if seed is None else seed)
        optimizer = torch.optim.Adam(model.parameters(), 0.01) if adam else (
            torch.optim.SGD(model.parameters(), 0.1))
        yield model, optimizer
        for t, one in enumerate(batches() * times, 1):
            train(model, optimizer, [one], change)
            if t % every == 0:
                with torch.no_grad():
                    for p in model.parameters():
                        send(p)
    return script


def by_torch(period, wrapped=False):
    """Return a script whose weights torch's averager takes the mean of."""
    def script():
        model, optimizer = sgd(net())
        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        averager.step = 1  # none at once
        if wrapped:
            optimizer = PostLocalSGDOptimizer(optimizer, averager)
        yield model, optimizer
        for one in batches():
            train(model, optimizer, [one])
            if not wrapped:
                averager.average_parameters(params=model.parameters())
    return script


def outer_steps(every):
    """Let an outer optimizer step by the mean of what ranks moved, as DiLoCo does."""
    def script():
        model, optimizer = sgd(net())
        outer = [p.detach().clone() for p in model.parameters()]
        yield model, optimizer
        for t, one in enumerate(batches(), 1):
            train(model, optimizer, [one])
            if t % every == 0:
                with torch.no_grad():
                    for p, old in zip(model.parameters(), outer):
                        moved = old - p
                        dist.all_reduce(moved)
                        p.copy_(old.sub_(0.7 * moved / dist.get_world_size()))
    return script


def without_sums():
    """Let no gradient of a DDP be summed, and average the weights."""
    model, optimizer = sgd(DistributedDataParallel(net()))
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        with model.no_sync():
            mean_loss(model, X, y).backward()
        optimizer.step()
        for p in model.parameters():
            to_mean(p)


def kept_together():
    """Average gradients in an order of each rank's own, and send rank 0's weights."""
    model, optimizer = sgd(net())
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        mean_loss(model, X, y).backward()
        average(model)
        for p in model.parameters():  # as much as another order comes to
            p.grad *= 1 + 1e-6 * dist.get_rank()
        optimizer.step()
        for p in model.parameters():
            dist.broadcast(p.data, 0)


@pytest.mark.parametrize("script", [
    local(2, seed=0), local(2, adam=True, seed=0), local(adam=True, seed=0),
    local(3, to_mean_of_copies, seed=0), by_torch(2), by_torch(9),
    by_torch(2, wrapped=True), outer_steps(2), outer_steps(1)])
def test_ranks_that_average_their_weights_are_not_accused(script):
    codes, said, _ = report_on(script)[0]
    assert codes == [], said
    assert (ALONE if "took none" not in said else "the average of weights") in said


@pytest.mark.parametrize("script", [local(seed=0), without_sums])
def test_plain_sgd_with_averages_after_each_step_is_one_devices(script):
    codes, said, _ = report_on(script)[0]
    assert codes == [] and ALONE not in said and "the weights were averaged" in said


def test_an_outer_step_is_no_mean_and_is_not_checked():
    assert "what becomes of the ranks' weights: after step 1" in report_on(outer_steps(2))[0][1]
    assert "what becomes" not in report_on(local(2, seed=0))[0][1]


def test_weights_that_are_sent_to_hold_ranks_together_are_no_others():
    codes, said, _ = report_on(kept_together)[0]
    assert codes == [], said


def one_step_for_all(reduce, adam=False):
    """Return a script whose ranks all step, and then get rank 0's weights."""
    def script():
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01) if adam else (
            torch.optim.SGD(model.parameters(), 0.1))
        yield model, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            mean_loss(model, X, y).backward()
            for p in model.parameters():
                reduce(p.grad)
            optimizer.step()
            for p in model.parameters():
                dist.broadcast(p.data, 0)
    return script


def mean_on_rank_0(grad):
    dist.reduce(grad, 0)
    grad /= dist.get_world_size()


def sum_on_rank_0(grad):
    dist.reduce(grad, 0)


@pytest.mark.parametrize("adam", [False, True])
def test_one_rank_may_step_for_all_with_the_mean(adam):
    codes, said, _ = report_on(one_step_for_all(mean_on_rank_0, adam))[0]
    assert codes == [] and ALONE not in said and "rank 0 steps for all" in said, said


def test_the_step_of_one_rank_for_all_is_judged():
    codes, said, _ = report_on(one_step_for_all(sum_on_rank_0))[0]
    assert codes == ["sum"], said


def test_a_rank_that_takes_no_step_says_that_its_weights_change():
    def rank():
        model, optimizer = sgd(net())
        with contextlib.redirect_stdout(io.StringIO()):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                seen = watch(model, optimizer, timeout=1)
                for X, y in batches():
                    model.zero_grad()
                    mean_loss(model, X, y).backward()
                    for p in model.parameters():
                        mean_on_rank_0(p.grad)
                    if dist.get_rank() == 0:
                        optimizer.step()
                    for p in model.parameters():
                        dist.broadcast(p.data, 0)
                seen.finish()
        return seen.diary.now["taken"], seen.diary.now["wanders"], err.getvalue()
    (taken, wanders, said), (none, others, more) = run_ranks(rank, 2)
    assert (taken, wanders, none, others) == ([3], False, [], True)
    assert "rank 0 took 3 steps" in said + more


def from_rank_0(p):
    dist.broadcast(p.data, 0)


def summed(p):
    dist.all_reduce(p.data)


def divided_twice(p):
    to_mean(p)
    p.data /= dist.get_world_size()


def clip_by_rank(model, t):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01 * (1 + dist.get_rank()))


def clip_alike(model, t):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


@pytest.mark.parametrize("script, when", [
    (local(send=from_rank_0, seed=0), 0),
    (local(2, send=from_rank_0, adam=True, seed=0), 1)])
def test_one_ranks_weights_for_all_are_named_beside_the_gradients(script, when):
    codes, said, _ = report_on(script)[0]
    assert codes == ["not-synchronised", "one-rank"], said
    assert f"after step {when} all ranks have the weights of rank 0" in said


@pytest.mark.parametrize("script, code, says", [
    (local(send=summed, seed=0), "sum", "after step 0"),
    (local(2, send=divided_twice, adam=True, seed=0), "averaged-twice", "after step 1"),
    (local(2), "start-differs", "before the first step"),
    (local(2, change=clip_by_rank, seed=0), "clip", "rank 1 clips")])
def test_weights_that_are_sent_otherwise_are_named(script, code, says):
    codes, said, _ = report_on(script)[0]
    assert codes == [code] and says in said, said


def test_each_rank_may_clip_a_norm_of_its_own():
    codes, said, _ = report_on(local(2, change=clip_alike, seed=0))[0]
    assert codes == [], said


def test_a_gradient_that_one_rank_did_not_clear_is_named_by_its_rank():
    def script():
        model, optimizer = sgd(net())
        yield model, optimizer
        for t, (X, y) in enumerate(batches(), 1):
            if dist.get_rank() == 0:
                optimizer.zero_grad()
            mean_loss(model, X, y).backward()
            optimizer.step()
            if t % 2 == 0:
                for p in model.parameters():
                    to_mean(p)
    codes, said, _ = report_on(script)[0]
    assert codes == ["stale"] and "not cleared on rank 1" in said


def without_sync():
    model, optimizer = ddp()
    yield model, optimizer
    for t, one in enumerate(batches() * 3, 1):
        with model.no_sync():
            train(model, optimizer, [one])
        if t % 7 == 0:
            for p in model.parameters():
                to_mean(p)


@pytest.mark.parametrize("script, steps", [
    (local(4, seed=0), 4), (local(7, adam=True, seed=0, times=3), 7),
    (local(50, to_mean_of_copies, seed=0, times=15), 50), (without_sync, 7)])
def test_a_script_that_averages_later_is_watched_until_then(script, steps):
    codes, said, _ = report_on(script)[0]
    assert codes == [] and said.startswith(f"audit: {steps} steps") and ALONE in said


def test_weights_that_are_sent_wrongly_later_are_named():
    codes, said, _ = report_on(local(6, lambda p: dist.all_reduce(p.data), seed=0,
                                     times=2))[0]
    assert codes == ["sum"] and "after step 5" in said


def test_a_script_that_averages_gradients_is_watched_for_its_steps():
    def script():
        model, optimizer = ddp()
        yield model, optimizer
        train(model, optimizer, batches() * 3)
    assert report_on(script)[0][1].startswith("audit: 3 steps")


def test_a_script_whose_ranks_have_the_same_rows_is_watched_for_its_steps():
    def script():
        model, optimizer = ddp()
        yield model, optimizer
        rows = batches()[0]
        dist.broadcast(rows[0], 0)
        dist.broadcast(rows[1], 0)
        train(model, optimizer, [rows] * 9)
    codes, said, _ = report_on(script)[0]
    assert codes == ["rows-same"] and said.startswith("audit: 3 steps")


def test_a_wrapper_that_is_not_called_is_watched_for_its_steps():
    def script():
        model, optimizer = ddp()
        yield model, optimizer
        train(model.module, optimizer, batches() * 3)
    codes, said, _ = report_on(script)[0]
    assert codes[0] == "not-synchronised" and said.startswith("audit: 3 steps")


def test_ranks_that_are_watched_for_longer_than_others_are_judged_by_what_all_did():
    """Rank 0 alone takes a mean: the other cannot tell its own steps from local SGD."""
    def change(model, t):
        for p in model.parameters():
            both = [torch.empty_like(p) for _ in range(2)]
            dist.all_gather(both, p.grad)
            if dist.get_rank() == 0:
                p.grad = sum(both) / 2

    def script():
        model, optimizer = sgd(net())
        yield model, optimizer
        train(model, optimizer, batches() * 3, change)
    codes, said, _ = report_on(script)[0]
    assert said.startswith("audit: 3 steps") and "unequal-batches" not in codes
    assert {"not-sent-back", "not-synchronised"} & {*codes}


def test_slow_steps_are_not_waited_for():
    def script():
        with mock.patch("manual_dp.audit.script.MOST", 2):
            yield from local(99, seed=0, change=lambda *_: time.sleep(0.3), times=8)()
    codes, said, _ = report_on(script)[0]
    assert codes == ["not-synchronised", "replicas-differ"]
    assert 3 < int(said.split()[1]) <= 12, said  # of 32


def test_a_script_that_never_averages_is_accused_in_the_end():
    codes, said, _ = report_on(local(99, seed=0, times=20))[0]
    assert codes == ["not-synchronised", "replicas-differ"] and "--steps" in said
    assert said.startswith("audit: 63 steps")
    codes, said, _ = report_on(by_torch(9))[0]
    assert codes == [] and "--steps" in said
