"""More bugs of exercise 7.1, as in steps.py: those that need a closer look.

    RIGHT, BUGS   all programs of the exercise
"""

import torch

from manual_dp.school.ps7 import steps
from manual_dp.school.ps7.given import (
    backward,
    clear,
    cut,
    descend,
    loss,
    sum_gradients,
)


def labels_of_others(X, y, device_params, devices, lr):
    """Split rows and labels in two different ways."""
    k = len(devices)
    for rank, (params, X_shard) in enumerate(zip(device_params, cut(X, k))):
        clear(params)
        labels = torch.cat([y[other::k] for other in range(k)])
        loss(params, X_shard, cut(labels, k)[rank]).sum().backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(X))


def same_rows(X, y, device_params, devices, lr):
    """Hand the first shard to every device."""
    X_shard, y_shard = cut(X, len(devices))[0], cut(y, len(devices))[0]
    for params in device_params:
        clear(params)
        loss(params, X_shard, y_shard).mean().backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(devices))


def neighbours_alone(X, y, device_params, devices, lr):
    """Add the next rank's gradient, and no other rank's."""
    k = len(devices)
    for params, X_shard, y_shard in zip(device_params, cut(X, k), cut(y, k)):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()
    grads = [[p.grad for p in params] for params in device_params]
    for rank, params in enumerate(device_params):
        for i, p in enumerate(params):
            p.grad = sum(grads[other][i] for other in {rank, (rank + 1) % k})
        descend(params, lr / len(X))


def mean_of_nothing(X, y, device_params, devices, lr):
    """Divide by the rows of a shard, which may be empty."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()
        for p in params:
            p.grad = p.grad / len(y_shard) * (len(y_shard) / len(y))
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr)


def others_behind(X, y, device_params, devices, lr):
    """Step on the first device; the others get its weights before the next step."""
    first = device_params[0]
    for params in device_params[1:]:
        for p, q in zip(params, first):
            p.data.copy_(q.data)
    backward(device_params, X, y)
    sum_gradients(device_params)
    descend(first, lr / len(X))


def three_digits(X, y, device_params, devices, lr):
    """Round the gradients to three digits before they are sent."""
    for params, X_shard, y_shard in zip(device_params, cut(X, len(devices)),
                                        cut(y, len(devices))):
        clear(params)
        loss(params, X_shard, y_shard).sum().backward()
        for p in params:
            p.grad = (p.grad * 1e3).round() / 1e3
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(X))


def little_decay(X, y, device_params, devices, lr):
    """Shrink the weights a little, which nobody asked for."""
    backward(device_params, X, y)
    sum_gradients(device_params)
    for params in device_params:
        for p in params:
            p.data.mul_(1 - 1e-5 * lr)
        descend(params, lr / len(X))


def filled_up(X, y, device_params, devices, lr):
    """Repeat the first rows until all shards are full."""
    k = len(devices)
    index = torch.arange(-(-len(X) // k) * k) % len(X)
    for params, own in zip(device_params, cut(index, k)):
        clear(params)
        loss(params, X[own], y[own]).sum().backward()
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(index))


def one_memory(X, y, device_params, devices, lr):
    """Let all replicas share one memory after the step."""
    backward(device_params, X, y)
    sum_gradients(device_params)
    for params in device_params:
        descend(params, lr / len(X))
        for p, first in zip(params, device_params[0]):
            p.data = first.data


RIGHT = [steps.sums, steps.weighed, steps.every_kth, steps.row_by_row,
         steps.backwards_in_order, steps.in_one_bucket, steps.first_device_then_copies]
BUGS = [steps.mean_of_means, steps.sum_for_mean, steps.own_gradient,
        steps.sum_on_rank_0, steps.never_cleared, steps.last_rows_dropped,
        steps.last_parameter_forgotten, labels_of_others, same_rows, neighbours_alone,
        mean_of_nothing, others_behind, three_digits, little_decay, filled_up,
        one_memory]
