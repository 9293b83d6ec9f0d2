"""Time `train_batch` beside a plain step: forward, backward, `sgd`, on one device."""

from functools import partial

import torch
from torch.nn import functional as F

from manual_dp.lab.bench.turns import seconds
from manual_dp.lenet import init_params, lenet
from manual_dp.params import get_params
from manual_dp.train import sgd, train_batch


def step(world_size, setup):
    """Return the row: both sides step on the same minibatch, again and again."""
    X = torch.rand(setup.batch_size, 1, 28, 28, device=setup.device)
    y = torch.randint(10, (setup.batch_size,), device=setup.device)
    devices, lr = [setup.device] * world_size, 0.05
    device_params, (params,) = replicas(devices), replicas(devices[:1])

    def plain_step():
        total = F.cross_entropy(lenet(X, params), y, reduction="sum")
        total.backward()
        sgd(params, lr, len(X))
        return total.item() / len(X)
    return (f"train_batch on {world_size} / a plain step",
            partial(seconds, lambda: train_batch(X, y, device_params, devices, lr)),
            partial(seconds, plain_step))


def replicas(devices):
    """Return LeNet's weights on each device, the same numbers at every call."""
    params = init_params("he", torch.Generator())
    return [get_params(params, device) for device in devices]
