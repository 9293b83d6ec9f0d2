"""What each method wraps a network in, and which devices it takes.

    wrap       the wrapped network of this rank
    ranks      how many processes a method starts for so many devices
    device     this rank's device; backend: what its messages go through
    Mixed      a network in mixed precision; short_type: the shorter type
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.devices import try_devices
from manual_dp.parallel import DataParallel
from manual_dp.ranks import DDP

METHODS = ("dataparallel", "ddp", "ddp-by-hand")


def ranks(method, world_size):
    """Return the number of processes: DataParallel has one for all devices."""
    return 1 if method == "dataparallel" else world_size


def backend(world_size):
    """Return "nccl" where each rank has a GPU of its own, else "gloo".

    world_size: the ranks on this host.
    """
    return "nccl" if torch.cuda.device_count() >= world_size else "gloo"


def device():
    """Return this rank's device: a GPU of its own, or the CPU for all.

    Each host counts its own GPUs: rank 5 may be the second rank of the second host.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size()
    if backend(int(local)) == "gloo":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK") or dist.get_rank()))


def wrap(net, method, world_size):
    """Wrap `net`, which is on this rank's device, in what the method trains with."""
    if method == "dataparallel":
        return DataParallel(net, try_devices(world_size))
    return {"ddp": DistributedDataParallel, "ddp-by-hand": DDP}[method](net)


def alone(model):
    """Return a block in which the ranks' gradients stay apart, if there are ranks."""
    return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()


class Mixed(nn.Module):
    """Run `net` in a shorter type where torch's autocast holds it to be safe.

    Inside the module, because the threads of DataParallel do not take autocast over
    from the caller. Weights and scores stay what they are.
    """

    def __init__(self, net, dtype):
        super().__init__()
        self.net, self.dtype = net, dtype

    def forward(self, X):
        """Return the network's scores, in the type of X."""
        with torch.autocast(X.device.type, dtype=self.dtype):
            return self.net(X).to(X.dtype)


def short_type(device):
    """Return the type for mixed precision: float16 on a GPU, bfloat16 on a CPU."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16
