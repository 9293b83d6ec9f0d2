"""Time epochs and calls in this process, and what comes first in a new Python.

An epoch is made from a slice. Both sides train on the same first images, each from its
own loader; d2l's is the one that the book calls, with four worker processes, and the
slice is all that it holds, so it loads nothing in vain. A loader's start and end count
once, the time between times 60,000 images / the slice. What the images show takes no
time: without Fashion-MNIST's files they are random, and the row says so.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from course.lab import book
from course.lab.bench.turns import clock, seconds
from manual_dp.allreduce import allreduce
from manual_dp.data import Batches, load_data
from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet
from manual_dp.params import get_params, pack_grads
from manual_dp.ranks import run_ranks
from manual_dp.train import sgd, train_batch


def epoch(what, their_step, world_size, setup):
    """Return the row: our loader and `train_batch`, d2l's loader and `their_step`."""
    n, devices = setup.images, try_devices(world_size)
    try:
        train_iter, _ = load_data("fashion-mnist", root=setup.root)
        X, y = train_iter.X[:n], train_iter.y[:n]
    except FileNotFoundError:
        what += ", random images"
        X, y = torch.rand(n, 1, 28, 28), torch.randint(10, (n,))

    def side(step, loader):
        step = partial(step, device_params=replicas(devices), devices=devices, lr=0.05)
        return partial(epoch_seconds, step, loader, 60_000 / n)
    return (what, side(train_batch, Batches(X, y, setup.batch_size, torch.Generator())),
            side(their_step, book.load_data(X, y, setup.batch_size)))


def epoch_seconds(step, loader, scale):
    """Take a step on every batch; return the seconds, those of steps times `scale`."""
    start = clock()
    batches = iter(loader)
    first = clock()
    for _ in range(len(loader)):
        step(*next(batches))
    last = clock()
    next(batches, None)  # there is none: d2l's workers stop here
    return first - start + (last - first) * scale + clock() - last


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
