"""`nn.DataParallel` by hand, on GPUs and on a CPU: one process, threads.

    replicate        copies of a module, through which gradients flow back
    parallel_apply   one forward on each replica, all at once
    gather           the outputs in one tensor
    DataParallel     scatter, replicate, parallel_apply, gather

    net = DataParallel(module, devices)
    loss(net(X), y).sum().backward()     gradients are the module's, sums over replicas

The weights live on devices[0] and are copied again in every forward: about the same
bytes as a star all-reduce, all of them through one device. `nn.DataParallel` does these
four steps on GPUs; without a GPU it calls the bare module and splits nothing.

Not offered: sparse gradients, lazy layers before their first call, and modules that
keep a tensor computed from parameters, as old `weight_norm` and pruning do.
"""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import nn

from manual_dp.devices import check_devices
from manual_dp.split import scatter


def replicate(module, devices):
    """Return a copy of `module` on each device, of tensors that autograd can follow.

    A copied parameter is no leaf: backward runs through the copy and adds up the
    gradients of all replicas in `module`. Tied weights stay tied.
    Raises ValueError, naming it, if a tensor of the module is not on devices[0].
    """
    _check(module, devices)
    replicas = []
    for rank, device in enumerate(devices):
        copies = {id(p): p.to(device, copy=True) for p in module.parameters()}
        for buffer in module.buffers():
            # replica 0 writes into the module's own, as in nn.DataParallel
            copies[id(buffer)] = buffer.to(device, copy=rank > 0)
        replicas.append(deepcopy(module, copies))  # takes a tensor's copy from there
    return replicas


def parallel_apply(replicas, X_shards):
    """Return [replicas[rank](X_shards[rank]) for every rank], computed in threads.

    An exception is raised here as it was there, with the replica's number in front.
    Threads take over whether gradients are on, but neither autocast nor a CUDA stream.
    """
    _check_shards(replicas, X_shards)
    wanted = torch.is_grad_enabled()  # in a new thread gradients are on, always

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

    Backward cuts the gradient of the whole and gives each output its own rows.
    Raises TypeError or ValueError, naming the replica, for what has no rows.
    """
    for rank, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"replica {rank} returned a {type(output).__name__}, not a tensor"
            )
        if output.dim() == 0:
            raise ValueError(
                f"replica {rank} returned one number; return a row for each example"
            )
    return torch.cat([output.to(device) for output in outputs])


class DataParallel(nn.Module):
    """Wrap `module`: forward splits the rows of X over `devices`.

    devices: one for each replica, the same one several times if need be; `module` is
    moved to devices[0]. With fewer rows than devices the last ones get no replica.
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


def _check(module, devices):
    check_devices(devices)
    home = torch.empty(0, device=devices[0]).device  # "cuda" is cuda:0, or another
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name} has no shape yet; call the module once before it is replicated"
            )
        if tensor.device != home:
            raise ValueError(
                f"{name} is on {tensor.device}, devices[0] is {home}; "
                "move the module there first"
            )
    for name, part in module.named_modules():
        _check_part(f"{name or 'the module'} ({type(part).__name__})", part)


def _check_part(name, part):
    for kept, value in vars(part).items():
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            raise TypeError(
                f"{name} keeps {kept}, a tensor that was computed: no replica can copy "
                "it; compute it in forward (for weight_norm take torch.nn.utils."
                "parametrizations.weight_norm, after pruning call torch.nn.utils.prune."
                "remove)"
            )
    if (
        isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        and part.sparse
        and part.weight.requires_grad
        and torch.is_grad_enabled()
    ):
        raise ValueError(
            f"{name} has sparse=True, and no sparse gradient comes back "
            "from a replica; make it with sparse=False"
        )


def _check_shards(replicas, X_shards):
    if not replicas or len(replicas) != len(X_shards):
        raise ValueError(
            f"need a shard for each replica, got {len(replicas)} replicas "
            f"and {len(X_shards)} shards"
        )
