"""The code of d2l.ai 12.5, to compare with: made to run on a CPU, else as printed.

    split_batch     `chunk` where the book calls nn.parallel.scatter (GPUs only)
    get_params      with the `clone` that the book's `.to` needs on one device
    allreduce       one call a parameter, through slice assignment
    train_batch     all forwards, all backwards, all-reduce, update
    load_data       d2l's loader, over any images

After the sample code of "Dive into Deep Learning" (modified MIT licence). Needs d2l,
whose `sgd` it calls. Nothing but comparisons imports this file.
"""

import warnings
from unittest import mock

import torch

from manual_dp.data import ensure_torchvision
from manual_dp.lenet import lenet
from manual_dp.lenet import loss as plain_loss


def import_d2l():
    """Import d2l's PyTorch library and return it."""
    ensure_torchvision()
    from d2l import torch as d2l

    return d2l


def split_batch(X, y, devices):
    """Cut X and y as `nn.parallel.scatter` does on GPUs, perhaps into fewer shards."""
    shards = []
    for tensor in (X, y):
        pairs = zip(tensor.chunk(len(devices)), devices)
        shards.append([shard.to(device) for shard, device in pairs])
    return shards


def get_params(params, device):
    """Copy `params` to `device`, where `.to` alone may not, and ask for gradients."""
    return [p.clone().to(device).requires_grad_() for p in params]


def allreduce(data):
    """Sum into data[0], then assign the sum to the others."""
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)


def train_batch(X, y, device_params, devices, lr):
    """Take the book's step; gradients must be None or zero before it."""
    X_shards, y_shards = split_batch(X, y, devices)
    ls = [
        plain_loss(lenet(X_shard, params), y_shard).sum()
        for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)
    ]
    for l in ls:
        l.backward()
    with torch.no_grad():
        for i in range(len(device_params[0])):
            allreduce([params[i].grad for params in device_params])
    for params in device_params:
        import_d2l().sgd(params, lr, X.shape[0])


def load_data(X, y, batch_size):
    """Return the training loader that d2l.load_data_fashion_mnist builds, over X and y.

    X: (n, 1, 28, 28) from 0 to 1, y: (n,). Nothing is downloaded: torchvision is made
    to believe that it has read the files already, and that they hold X and y.
    """
    d2l = import_d2l()
    images = (X[:, 0] * 255).round().to(torch.uint8)
    with (
        warnings.catch_warnings(),
        mock.patch.multiple(
            d2l.torchvision.datasets.FashionMNIST,
            _check_legacy_exist=lambda _: True,
            _load_legacy_data=lambda _: (images, y),
        ),
    ):
        # d2l asks for four workers; torch warns if the machine has fewer cores
        warnings.simplefilter("ignore")
        return d2l.load_data_fashion_mnist(batch_size)[0]
