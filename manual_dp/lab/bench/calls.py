"""Time calls in this process, and what happens before any work in a new Python."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from manual_dp.allreduce import allreduce
from manual_dp.lab import book
from manual_dp.lab.bench.turns import seconds
from manual_dp.lenet import init_params, lenet
from manual_dp.params import get_params, pack_grads
from manual_dp.ranks import run_ranks
from manual_dp.train import sgd, train_batch


def step(world_size, setup):
    """Return the row: `train_batch` and a plain step: forward, backward, `sgd`.

    Both step on the same minibatch, again and again.
    """
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


def lenet_grads(setup):
    """Return the row: four ranks' gradients packed, and one by one as in the book."""
    device_params = replicas([setup.device] * 4)
    packed = [pack_grads(params) for params in device_params]
    apart = [[torch.zeros_like(p) for p in ranks] for ranks in zip(*device_params)]
    return ("packed / the book's, 8 parameters",
            partial(seconds, lambda: allreduce(packed)),
            partial(seconds, lambda: [book.allreduce(tensors) for tensors in apart]))


def big(function, setup):
    """Return the row: `function` of four tensors, and a copy of all four."""
    tensors = [torch.zeros(setup.numbers, device=setup.device) for _ in range(4)]
    copies = [tensor.clone() for tensor in tensors]
    return (f"4 x {4 * setup.numbers / 2**20:.3g} MiB / copying them once",
            partial(seconds, lambda: function(tensors)),
            partial(seconds, lambda: [b.copy_(a) for a, b in zip(tensors, copies)]))


def imports(setup):
    """Return the row: `import manual_dp` and `import torch`, each in a new Python."""
    return ("import manual_dp / import torch",
            partial(_new_python, "import time", "import manual_dp"),
            partial(_new_python, "import time", "import torch"))


def launch(world_size, setup):
    """Return the row: ranks that do nothing, and one second."""
    return (f"run_ranks on {world_size} ranks, in seconds",
            partial(seconds, partial(run_ranks, int, world_size)),  # int() is 0
            lambda: 1.0)


def first_launch(setup):
    """Return the row: two ranks that do nothing, in a new Python, and one second."""
    before = "import time; from manual_dp.ranks import run_ranks"
    return ("the first run_ranks, in seconds",
            partial(_new_python, before, "run_ranks(int, 2)"), lambda: 1.0)


def _new_python(before, timed):
    code = f"{before}; t = time.time(); {timed}; print(time.time() - t)"
    return float(subprocess.check_output([sys.executable, "-c", code],
                                         cwd=Path(__file__).parents[3]))
