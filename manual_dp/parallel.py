"""`nn.DataParallel` by hand, on GPUs and on a CPU: one process, threads.

    replicate        copies of a module, whose gradients arrive in the module
    parallel_apply   one forward on each replica, all at once
    gather           the outputs in one tensor
    DataParallel     scatter, replicate, parallel_apply, gather

    net = DataParallel(module, devices)
    loss(net(X), y).sum().backward()     adds the gradients of all replicas to module's

The weights live on devices[0] and are copied to all devices in every forward: about
as many bytes as a star all-reduce sends, all of them through one device.
`nn.DataParallel` does these four steps on GPUs; without a GPU it calls the bare module
and splits nothing.

Not offered: sparse gradients, lazy layers before their first call, and modules that
keep a tensor computed from parameters, as old `weight_norm` and pruning do.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import nn

from manual_dp.checks import check_devices, check_module, check_outputs, check_shards
from manual_dp.split import scatter


def replicate(module, devices):
    """Return a copy of `module` on each device, made by copies that autograd records.

    So a copied parameter is no leaf: backward runs through the copy, and adds the
    gradients of all replicas to the parameters of `module`. Tied weights stay tied.
    Lists and other attributes are copied too; torch's replicas share them.
    Raises ValueError, with its name, if a tensor of the module is not on devices[0].
    """
    check_module(module, devices)
    replicas = []
    for rank, device in enumerate(devices):
        copies = {id(p): p.to(device, copy=True) for p in module.parameters()}
        for buffer in module.buffers():
            # replica 0 keeps the module's own buffers and updates them, as in
            # nn.DataParallel: so a running mean sees the first shard only
            copies[id(buffer)] = buffer.to(device, copy=rank > 0)
        # deepcopy looks up in its second argument, by id, what is copied already: it
        # takes these tensors from there, and copies the rest of the module
        replicas.append(deepcopy(module, copies))
    return replicas


def parallel_apply(replicas, X_shards):
    """Return [replicas[rank](X_shards[rank]) for every rank], computed in threads.

    If a replica raises, the same exception is raised here, with the replica's number
    in front of its text. Each thread turns gradients on or off as the caller has them;
    it does not take over the caller's autocast or CUDA stream.
    """
    check_shards(replicas, X_shards)
    # asked here: a new thread begins with gradients on, also inside torch.no_grad()
    wanted = torch.is_grad_enabled()

    def apply(rank):
        try:
            with torch.set_grad_enabled(wanted):
                return replicas[rank](X_shards[rank])
        except Exception as error:
            error.args = (f"replica {rank}: {error}",)
            raise

    with ThreadPoolExecutor(len(replicas)) as pool:
        return list(pool.map(apply, range(len(replicas))))


def gather(outputs, device):
    """Return the rows of all outputs, in rank order, as one tensor on `device`.

    Backward cuts the gradient of that tensor and gives each output its own rows.
    Raises TypeError or ValueError, naming the replica, for an output without rows.
    """
    check_outputs(outputs)
    return torch.cat([output.to(device) for output in outputs])


class DataParallel(nn.Module):
    """Wrap `module`: forward splits the rows of X over `devices`.

    devices: one for each replica; the same one may stand there several times. `module`
    is moved to devices[0]. With fewer rows than devices the last ones get no replica.
    """

    def __init__(self, module, devices):
        super().__init__()
        check_devices(devices)
        self.module = module.to(devices[0])
        self.devices = list(devices)

    def forward(self, X):
        """Return what `module` returns for X, computed on all devices at once."""
        X_shards = [shard for shard in scatter(X, self.devices) if len(shard)]
        replicas = replicate(self.module, self.devices[: len(X_shards)])
        return gather(parallel_apply(replicas, X_shards), self.devices[0])
