"""Time an epoch beside the book's, and the loader beside d2l's.

An epoch is made from a slice. Both sides train on the same first images, each from its
own loader; d2l's is the one that the book calls, with four worker processes, and the
slice is all that it holds, so it loads nothing in vain. A loader's start and end count
once, the time between times 60,000 images / the slice. What the images show takes no
time: without Fashion-MNIST's files they are random, and the row says so.
"""

from functools import partial

import torch

from manual_dp.data import Batches, load_data
from manual_dp.devices import try_devices
from manual_dp.lab import book
from manual_dp.lab.bench.calls import replicas
from manual_dp.lab.bench.turns import clock
from manual_dp.train import train_batch


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
