"""The claim of the course: any number of replicas train as one device trains.

One device is torch's autograd on the unsplit minibatch, and no function of train.py.
Step by step, each from equal weights, every weight must end within 1e-12, at any rate.
Run against run, a hundred steps stay within 1e-12 at a rate where training is stable;
the weights must have moved by more than 1e-3, and replicas must agree bit for bit.
Section "planted" then breaks the module in seventeen ways, and the same check has to
see each.
"""

import functools

import pytest
import torch
from torch.nn import functional as F

from manual_dp import (
    allreduce,
    get_params,
    lenet,
    ring_allreduce,
    train_batch,
    tree_allreduce,
)
from tests.support.planted import HONEST, LR, PLANTED, initial, minibatch, plant


def minibatches(sizes, steps, dtype):
    return [minibatch(sizes[step % len(sizes)], step, dtype) for step in range(steps)]


@functools.cache
def one_device(sizes, steps, dtype):
    """Return the weights after `steps` of plain SGD on unsplit minibatches."""
    params = [p.requires_grad_() for p in initial(dtype)]
    for X, y in minibatches(sizes, steps, dtype):
        grads = torch.autograd.grad(F.cross_entropy(lenet(X, params), y), params)
        with torch.no_grad():
            for p, grad in zip(params, grads):
                p -= LR * grad
    return [p.detach() for p in params]


def check_equivalence(
    module, world_size, sizes, steps, dtype=torch.float64, tolerance=1e-12
):
    """Assert that `module` trains replicas as one device trains."""
    devices, start = ["cpu"] * world_size, initial(dtype)
    device_params = [module.get_params(start, device) for device in devices]
    for X, y in minibatches(sizes, steps, dtype):
        module.train_batch(X, y, device_params, devices, LR, module.allreduce)
    expected = one_device(sizes, steps, dtype)
    moved = max((p - p0).abs().max() for p, p0 in zip(expected, initial(dtype)))
    assert moved > 1e-3, "nothing was trained, so nothing is shown"
    for params in device_params:
        for i, (p, p0) in enumerate(zip(params, device_params[0])):
            assert torch.equal(p, p0), f"replicas differ in parameter {i}"
    for i, (p, wanted) in enumerate(zip(device_params[0], expected)):
        error = (p - wanted).abs().max()
        assert error < tolerance, f"parameter {i} is off by {error:.1e}"


# the claim

UNEVEN = (13, 5, 1, 8, 3)  # rows of one step and the next; over 8 ranks often too few


def test_a_hundred_steps_on_replicas_are_those_of_one_device():
    # Takes seconds: only a long run shows that rounding does not grow step by step.
    check_equivalence(HONEST, 5, UNEVEN, steps=100)


def farthest_step(world_size, allreduce, lr, sizes=UNEVEN, steps=10):
    """Return how far a step ends from one device's; a part of the weights above 1."""
    devices, far = ["cpu"] * world_size, 0.0
    replicas = [get_params(initial(torch.float64), device) for device in devices]
    for X, y in minibatches(sizes, steps, torch.float64):
        params = [p.detach().clone().requires_grad_() for p in replicas[0]]
        grads = torch.autograd.grad(F.cross_entropy(lenet(X, params), y), params)
        train_batch(X, y, replicas, devices, lr, allreduce)
        for replica in replicas:
            for p, p0, grad in zip(replica, params, grads):
                wanted = (p0 - lr * grad).detach()
                error = (p - wanted).abs().max() / wanted.abs().max().clamp(min=1)
                far = max(far, error.item())
    return far


@pytest.mark.parametrize(
    "world_size, allreduce, lr",
    [
        (1, allreduce, 1.0),
        (3, ring_allreduce, 0.01),
        (7, tree_allreduce, 0.3),
        (8, ring_allreduce, 1.0),
    ],
)
def test_each_step_is_that_of_one_device_at_any_rate(world_size, allreduce, lr):
    assert farthest_step(world_size, allreduce, lr) <= 1e-12


def test_a_sum_that_misses_a_rank_in_one_step_is_seen():
    calls = []

    def forgetful(tensors):
        calls.append(1)
        allreduce(tensors[:-1] if len(calls) == 6 else tensors)

    assert farthest_step(3, forgetful, 0.05, sizes=(8,)) > 1e-6


def test_ten_steps_in_float32_agree_to_a_millionth():
    check_equivalence(HONEST, 4, (40,), 10, torch.float32, tolerance=1e-6)


# planted: what a bug in the module looks like to the check


def test_without_a_planted_bug_the_copy_of_the_module_passes(monkeypatch):
    copy = plant(monkeypatch)
    assert copy.train_batch is not train_batch
    check_equivalence(copy, 3, (13,), 10)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_seen(monkeypatch, bug):
    module = plant(monkeypatch, *PLANTED[bug])
    with pytest.raises(AssertionError, match="off by|replicas differ"):
        check_equivalence(module, 3, (13,), 10)
