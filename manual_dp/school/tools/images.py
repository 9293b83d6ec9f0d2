"""Images for LeNet, and which of them go through which weights.

    images      draw some
    watched     note each call of lenet, as a Call
    rows_seen   the rows that went through each replica's weights
    together    do images come to the device where the weights are?
"""

from collections import namedtuple
from contextlib import contextmanager, suppress
from unittest.mock import patch

import torch
from torch.nn import functional as F

from manual_dp.school.tools.settings import kept

# place: where the first weights lie. pixels: the first of each image. gradients: are
# they switched on? together: are images and weights on one device?
Call = namedtuple("Call", "place pixels gradients together")


def images(seed, rows):
    """Draw images, distinct and continuous, and labels."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, 1, 28, 28, dtype=torch.float64, generator=generator)
    return X, torch.randint(10, (rows,), generator=generator)


@contextmanager
def watched():
    """Yield a list; while the block runs, each call of lenet adds what goes through.

    That is a `Call`. Calls without rows are left out.
    """
    calls, conv2d = [], F.conv2d

    def call(X, W, *args):
        if X.shape[1] == 1 and len(X):
            pixels = [] if X.is_meta else X[:, 0, 0, 0].tolist()
            calls.append(Call(W.data_ptr(), pixels, torch.is_grad_enabled(),
                              X.device == W.device))
        return conv2d(X, W, *args)
    with patch.object(F, "conv2d", call):
        yield calls


def rows_seen(calls, replicas, X):
    """Return the rows of X that each replica worked on, and as a last list all others'.

    A row is known by the first pixel of its image, a replica by where its first
    weights lie.
    """
    order = {pixel: row for row, pixel in enumerate(X[:, 0, 0, 0].tolist())}
    places = [params[0].data_ptr() for params in replicas]
    seen = [[] for _ in range(len(replicas) + 1)]
    for call in calls:
        rank = places.index(call.place) if call.place in places else -1
        seen[rank] += [order[pixel] for pixel in call.pixels if pixel in order]
    return seen


def together(work, params, rows=4):
    """Return "yes" if images and weights meet on one device in `work`, else "no".

    work(X, y, replicas, devices) is called with images on the CPU, and with replicas on
    a device that has no numbers: so it may fail half-way, which does not count.
    """
    devices = [torch.device("meta")] * 2
    replicas = [[p.detach().to(device).requires_grad_() for p in params]
                for device in devices]
    with watched() as calls, kept(), suppress(Exception):
        work(*images(0, rows), replicas, devices)
    return "yes" if all(call.together for call in calls) else "no"
