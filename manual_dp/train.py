"""Train replicas in step: one minibatch, many minibatches, and the test accuracy.

    sgd                 move a replica down its gradient. d2l.ai 12.5.6, 3.4
    train_batch         one step on all replicas. d2l.ai 12.5.6
    train               epochs of such steps. d2l.ai 12.5.6
    evaluate_accuracy   test accuracy on all devices at once. d2l.ai 12.5.8, 4

Gradients are summed over the whole minibatch, then divided by its size once, in
`sgd`. So the shards may be of any size, even empty: no rank takes a mean of its own.
In float64 a step from equal weights ends within 1e-12 of one device's, at any rate
(where weights are larger than 1: within 1e-12 of the largest). Over many steps that
rounding may grow or not; it depends on the training (lesson 05).
"""

import time
from contextlib import contextmanager

import torch

from manual_dp.allreduce import allreduce
from manual_dp.checks import (
    check_devices,
    check_images,
    check_labels,
    check_replica_count,
    check_sgd,
)
from manual_dp.data import load_data
from manual_dp.lenet import init_params, lenet, loss
from manual_dp.params import check_replicas, get_params, pack_grads
from manual_dp.split import split_batch


@torch.no_grad()
def sgd(params, lr, batch_size):
    """Take one step of minibatch SGD, in place, and zero the gradients.

    Gradients hold sums over the minibatch; `batch_size` is the whole minibatch's.
    Raises ValueError if a gradient is None, if lr is not a finite number >= 0, or if
    batch_size is below 1.
    """
    check_sgd(params, lr, batch_size)
    for p in params:
        # float: torch cannot multiply a Fraction by a tensor
        p -= float(lr) * p.grad / batch_size
        p.grad.zero_()


def train_batch(X, y, device_params, devices, lr, allreduce=allreduce):
    """Take one step on every replica; return the minibatch's mean loss, a float.

    X: (n, 1, 28, 28), y: (n,) int64, n >= 1, on any one device.
    device_params: a replica for each device, from `get_params`, changed in place.
    allreduce: any function that sums a list of tensors, one per rank, in place.
    A step happens on every replica or on none: if anything is raised, weights keep
    their bits, and no gradient is left for the next step. Raises ValueError or
    TypeError for arguments that do not fit, and ValueError if the summed gradient is
    not finite. Accepts replicas whose weights differ, since lessons train with an
    allreduce that is wrong on purpose; `train` compares them after each epoch.
    """
    check_replica_count(device_params, devices)
    check_replicas(device_params, values=False)
    check_images(X, device_params[0])
    check_labels(y)
    X_shards, y_shards = split_batch(X, y, devices)
    with _all_or_nothing(device_params):
        grads = [pack_grads(params) for params in device_params]
        losses = []
        for X_shard, y_shard, params in zip(X_shards, y_shards, device_params):
            l = loss(lenet(X_shard, params), y_shard).sum()
            l.backward()  # on a GPU it returns at once, and the next rank starts
            losses.append(l.detach())
        allreduce(grads)
        _check_finite(grads)
        for params in device_params:
            sgd(params, lr, len(X))  # the whole minibatch, not the shard
        return sum(l.item() for l in losses) / len(X)


def train(
    devices,
    batch_size,
    lr,
    num_epochs=10,
    data="digits",
    seed=0,
    scale="he",
    dtype=torch.float32,
    allreduce=allreduce,
    verbose=True,
    progress=None,
):
    """Train LeNet from scratch on `devices`; return the history, a dict.

    data: a name for `load_data`, or the pair (train_iter, test_iter) it returns.
    seed: decides the initial weights and the order of the examples, so runs that
    differ only in `devices` see the same minibatches. scale: as in `init_params`.
    verbose: print accuracy and time at the end, as the book does. progress: called as
    progress(batches, label) in each epoch; returns what to iterate over, as tqdm does.
    The history holds, for each epoch, "loss" (mean over the epoch), "test_acc" and
    "seconds" (training only).
    """
    check_devices(devices)
    if isinstance(data, str):
        data = load_data(data, batch_size, seed=seed, dtype=dtype)
    train_iter, test_iter = data
    generator = torch.Generator().manual_seed(seed)
    params = init_params(scale, generator, dtype)
    device_params = [get_params(params, device) for device in devices]
    history = {"world_size": len(devices), "loss": [], "test_acc": [], "seconds": []}
    for epoch in range(num_epochs):
        label = f"{len(devices)} devices, epoch {epoch + 1}/{num_epochs}"
        batches = progress(train_iter, label) if progress else train_iter
        start, total, count = time.perf_counter(), 0.0, 0
        for X, y in batches:
            total += len(X) * train_batch(X, y, device_params, devices, lr, allreduce)
            count += len(X)
        history["seconds"].append(time.perf_counter() - start)
        check_replicas(device_params)
        history["loss"].append(total / count)
        history["test_acc"].append(evaluate_accuracy(device_params, test_iter, devices))
    if verbose and num_epochs:
        print(
            f"test acc: {history['test_acc'][-1]:.2f}, "
            f"{sum(history['seconds']) / num_epochs:.1f} sec/epoch "
            f"on {list(devices)}"
        )
    return history


@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    """Return the share of examples classified right, each shard on its own device.

    data: minibatches (X, y), as `load_data`'s second result. Right answers are counted
    over all minibatches and divided once, so each example counts once, whatever the
    sizes.
    Raises ValueError if there are no examples, or for labels that `loss` refuses.
    """
    check_replica_count(device_params, devices)
    correct = total = 0
    for X, y in data:
        check_labels(y)  # labels of shape (n, 1) would be broadcast against n answers
        X_shards, y_shards = split_batch(X, y, devices)
        hits = [
            (lenet(X_shard, params).argmax(dim=1) == y_shard).sum()
            for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)
        ]
        # item() waits for its device: so only now, when all devices have started
        correct += sum(hit.item() for hit in hits)
        total += len(y)
    if not total:
        raise ValueError("data holds no examples")
    return correct / total


@contextmanager
def _all_or_nothing(device_params):
    before = [[p.detach().clone() for p in params] for params in device_params]
    try:
        yield
    except BaseException:  # also a KeyboardInterrupt between two replicas
        with torch.no_grad():
            for params, saved in zip(device_params, before):
                for p, old in zip(params, saved):
                    p.copy_(old)
                    p.grad = None
        raise


def _check_finite(grads):
    for rank, grad in enumerate(grads):
        # a NaN anywhere makes minimum and maximum NaN, an inf is one of them: ten times
        # as fast as isfinite of all numbers
        if not torch.stack(grad.aminmax()).isfinite().all():
            raise ValueError(
                f"the summed gradient on rank {rank} is not finite (NaN "
                "or inf in X, or too large a step); nothing was updated"
            )
