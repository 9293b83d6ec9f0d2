"""One step: microbatches, the scaler, clipping, in this order."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course.lab import trace
from course.lab.trainer import methods
from course.lab.trainer.step import Clock, make_scaler, train_step
from manual_dp.ranks import run_ranks

PLAIN = make_scaler(torch.float32, torch.device("cpu"))


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)


def minibatch(rows, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(rows, 4, dtype=torch.float64, generator=generator)
    return X.to(dtype), torch.randint(3, (rows,), generator=generator)


def stepped(model, parts, rows, scaler=PLAIN, max_norm=None, lr=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    total = train_step(model, parts, rows, optimizer, scaler, max_norm)
    return [p.detach().clone() for p in model.parameters()], float(total)


def in_one_step(rows, max_norm=None, lr=0.5, dtype=torch.float64):
    """Return the weights after the step as autograd and the formula say, and the loss."""
    one, (X, y) = net(dtype), minibatch(rows, dtype)
    loss = F.cross_entropy(one(X), y)
    grads = torch.autograd.grad(loss, list(one.parameters()))
    length = torch.cat([g.flatten() for g in grads]).norm()
    short = min(1, max_norm / (length + 1e-6)) if max_norm else 1
    return [p.detach() - lr * short * g for p, g in zip(one.parameters(), grads)], loss


def close(weights, others, most=1e-12):
    return max(float((p - q).abs().max()) for p, q in zip(weights, others)) <= most


@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_uneven_microbatches_count_every_row_once(max_norm):
    X, y = minibatch(7)
    parts = list(zip(X.split([4, 2, 1]), y.split([4, 2, 1])))
    weights, total = stepped(net(), parts, 7, max_norm=max_norm)
    expected, loss = in_one_step(7, max_norm)
    assert close(weights, expected)
    assert total == pytest.approx(7 * loss.item(), rel=1e-12)
    assert not close(weights, in_one_step(7, 0.02)[0], 1e-4) or max_norm is None


def on_rank(method, accumulate, max_norm):
    X, y = minibatch(16)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    X, y = X.chunk(world_size)[rank], y.chunk(world_size)[rank]
    model = methods.wrap(net(), method, world_size)
    with trace.all_reduces() as sizes:
        weights, _ = stepped(model, list(zip(X.chunk(accumulate), y.chunk(accumulate))),
                             16, max_norm=max_norm)
    return weights, len(sizes)


@pytest.mark.parametrize("method", ["ddp", "ddp-by-hand"])
def test_four_microbatches_on_two_ranks_are_one_step_and_one_all_reduce(method):
    expected, _ = in_one_step(16, max_norm=0.01)
    ranks = run_ranks(on_rank, 2, method, 4, 0.01, timeout=300)
    assert all(close(weights, expected) for weights, _ in ranks)
    if method == "ddp-by-hand":  # torch's own goes out from C++
        assert [count for _, count in ranks] == [1, 1]


def test_dataparallel_takes_the_step_of_one_device():
    X, y = minibatch(8)
    model = methods.wrap(net(), "dataparallel", 2)
    weights, _ = stepped(model, list(zip(X.chunk(2), y.chunk(2))), 8)
    assert close(weights, in_one_step(8)[0])


def test_the_gradient_is_clipped_when_the_scale_is_off():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    parts = [minibatch(8, torch.float32)]
    weights, _ = stepped(net(torch.float32), parts, 8, scaler, max_norm=0.01)
    assert close(weights, in_one_step(8, 0.01, dtype=torch.float32)[0], 1e-7)


def test_a_gradient_that_overflowed_is_left_out():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    (X, y), model = minibatch(8, torch.float32), net(torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    weights, _ = stepped(model, [(X * float("inf"), y)], 8, scaler, max_norm=1.0)
    assert close(weights, before, 0.0) and scaler.get_scale() == 2.0**15


def test_float16_alone_needs_a_scaler():
    cpu = torch.device("cpu")
    assert make_scaler(torch.float16, cpu).is_enabled()
    assert not make_scaler(torch.bfloat16, cpu).is_enabled()
    assert methods.short_type(cpu) == torch.bfloat16
    assert methods.short_type(torch.device("cuda")) == torch.float16


@pytest.mark.parametrize("parallel", [False, True])
def test_mixed_precision_computes_in_the_short_type_also_in_threads(parallel):
    seen, inner = [], net(torch.float32)
    inner[0].register_forward_hook(lambda layer, args, out: seen.append(out.dtype))
    mixed = methods.Mixed(inner, torch.bfloat16)
    model = methods.wrap(mixed, "dataparallel", 2) if parallel else mixed
    out = model(minibatch(4, torch.float32)[0])
    assert out.dtype == torch.float32 and inner[0].weight.dtype == torch.float32
    assert set(seen) == {torch.bfloat16} and len(seen) == 1 + parallel


def test_the_clock_adds_up_the_parts_of_each_step(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(Clock, "now", lambda self: next(times))
    clock = Clock()
    for name in ("load", "forward", "load"):
        clock.lap(name)
    clock.next()
    clock.lap("load")
    assert clock.laps == [{"load": 4.0, "forward": 2.0}, {"load": 4.0}]


def test_the_network_that_was_wrapped_gets_no_gradient_left_over():
    model = copy.deepcopy(net())
    stepped(model, [minibatch(4)], 4)
    assert all(p.grad is None for p in model.parameters())
