"""The claim of the course: any number of replicas train as one device trains.

One device is torch's autograd on the unsplit minibatch, and no function of train.py.
In float64 every weight must agree to 1e-12 and must have moved by more than 1e-3,
and replicas must agree bit for bit. Section "planted" then breaks the module in
seventeen ways, and the same check has to see each.
"""

import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import manual_dp
from manual_dp import (
    allreduce,
    get_params,
    init_params,
    lenet,
    ring_allreduce,
    train_batch,
    tree_allreduce,
)

HONEST = SimpleNamespace(get_params=get_params, train_batch=train_batch,
                         allreduce=allreduce)
LR = 0.05


def minibatch(rows, step, dtype):
    """Draw a minibatch of distinct, continuous values: none lies on a ReLU's kink."""
    generator = torch.Generator().manual_seed(1000 * rows + step)
    X = torch.rand(rows, 1, 28, 28, dtype=torch.float64, generator=generator)
    return X.to(dtype), torch.randint(10, (rows,), generator=generator)


def initial(dtype):
    return init_params("he", torch.Generator().manual_seed(0), dtype)


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


def check_equivalence(module, world_size, sizes, steps, dtype=torch.float64,
                      tolerance=1e-12):
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


@pytest.mark.parametrize("world_size", range(1, 9))
def test_a_hundred_steps_on_replicas_are_those_of_one_device(world_size):
    check_equivalence(HONEST, world_size, UNEVEN, steps=100)


@pytest.mark.parametrize("allreduce", [ring_allreduce, tree_allreduce])
@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_a_hundred_steps_with_another_allreduce_are_too(allreduce, world_size):
    module = SimpleNamespace(get_params=get_params, train_batch=train_batch,
                             allreduce=allreduce)
    check_equivalence(module, world_size, UNEVEN, steps=100)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ten_steps_in_float32_agree_to_a_millionth(world_size):
    check_equivalence(HONEST, world_size, (40,), 10, torch.float32, tolerance=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", range(1, 10))
def test_any_batch_size_works_at_the_first_step_and_at_the_second(world_size, rows):
    for steps in (1, 2):
        check_equivalence(HONEST, world_size, (rows,), steps)


# planted: what a bug in the module looks like to the check

NO_GUARD = ("train", "check_replicas(device_params, values=False)", "pass")
KEEP_OLD_GRADIENTS = [
    ("params", "p.grad = grad.view_as(p)",
     "p.grad = grad.view_as(p).copy_(0 if p.grad is None else p.grad)"),
    ("train", "p.grad.zero_()", "pass"),
]


def skipping(i):
    return [("train", "        allreduce(grads)\n",
             f"        for i in set(range(8)) - {{{i}}}:\n"
             "            allreduce([params[i].grad for params in device_params])\n")]


PLANTED = {
    "alias": [("params", ".to(device, copy=True)", ".to(device)"), NO_GUARD],
    "mean of shards": [
        ("train", "loss(lenet(X_shard, params), y_shard).sum()",
         "loss(lenet(X_shard, params), y_shard).mean()"),
        ("train", "sgd(params, lr, len(X))", "sgd(params, lr, len(devices))")],
    "no allreduce": [("train", "        allreduce(grads)\n", "")],
    "no broadcast back": [("allreduce", "tensor.copy_(root)", "pass")],
    "average": [("allreduce", "        root.add_(tensor.to(root.device))\n",
                 "        root.add_(tensor.to(root.device))\n"
                 "    root.div_(len(tensors))\n")],
    "added twice": [("allreduce", "root.add_(tensor.to(root.device))",
                     "root.add_(2 * tensor.to(root.device))")],
    "last replica left out": [
        ("allreduce", "for tensor in tensors[1:]:\n        root.add_",
         "for tensor in tensors[1:-1]:\n        root.add_")],
    "first bias skipped": skipping(1),
    "last bias skipped": skipping(7),
    "divide by shard size": [("train", "sgd(params, lr, len(X))",
                              "sgd(params, lr, len(X_shards[0]))")],
    "wrong batch constant": [("train", "sgd(params, lr, len(X))",
                              "sgd(params, lr, 256)")],
    "lr x k": [("train", "sgd(params, lr, len(X))",
                "sgd(params, lr * len(devices), len(X))")],
    "never zero": KEEP_OLD_GRADIENTS,
    "zero first only": [
        *KEEP_OLD_GRADIENTS,
        ("train", "        return sum(l.item()",
         "        _ = [p.grad.zero_() for p in device_params[0]]\n"
         "        return sum(l.item()")],
    "same shard to all": [
        ("split", "return (*shards, *empty)", "return (shards[0],) * len(devices)")],
    "labels shifted": [("split", "return scatter(X, devices), scatter(y, devices)",
                        "return scatter(X, devices), scatter(y.roll(1), devices)")],
    "last sample dropped": [("split", "zip(X.split(rows), devices)",
                             "zip(X[:-1].split(rows), devices)")],
}


def plant(monkeypatch, *edits):
    """Return what train.py then offers, after `edits` of the module's source."""
    pages = [line.split(".")[1].split()[0] for line in
             Path(manual_dp.__file__).read_text().splitlines()
             if line.startswith("from manual_dp.")]
    for page in pages:
        path = Path(manual_dp.__file__).with_name(f"{page}.py")
        source = path.read_text()
        for _, old, new in [edit for edit in edits if edit[0] == page]:
            assert source.count(old) == 1, f"{page}.py does not say {old!r} once"
            source = source.replace(old, new)
        module = ModuleType(f"manual_dp.{page}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def test_without_a_planted_bug_the_copy_of_the_module_passes(monkeypatch):
    copy = plant(monkeypatch)
    assert copy.train_batch is not train_batch
    check_equivalence(copy, 3, (13,), 10)


def test_seventeen_bugs_are_planted():
    assert len(PLANTED) == 17


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_seen(monkeypatch, bug):
    module = plant(monkeypatch, *PLANTED[bug])
    with pytest.raises(AssertionError, match="off by|replicas differ"):
        check_equivalence(module, 3, (13,), 10)
