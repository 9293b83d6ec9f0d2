"""Seconds of a step on this machine: what a second rank, or a second thread, brings.

    ranks      one device with all rows beside two ranks with half of them each
    threads    one process on one thread, and on two
    costs      what one row and the all-reduces of a step take, measured apart
    turning    the smallest of some row counts at which two ranks were faster

Both sides of a comparison take turns in the same processes, and the slowest rank counts
(bench.turns). A number is the median of all turns. Every rank has one thread.
"""

from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F

from course.lab.turns import turns_of_ranks
from manual_dp.ranks import BucketDDP, make_buckets


def ranks(make, shape, rows, count=15):
    """Return the seconds of a step of 2 * `rows` rows: on one device, on two ranks.

    make: returns the network. shape: of one row's input.
    """
    return _medians(turns_of_ranks(2, _alone_together, [make, shape, rows], count))


def threads(make, shape, rows, count=15):
    """Return the seconds of a step of `rows` rows on 1 and on 2 threads."""
    return _medians(turns_of_ranks(1, _one_thread_two, [make, shape, rows], count))


def costs(make, shape, rows, count=15):
    """Return the seconds of one row, forward and backward, and of the all-reduces.

    The row: of `rows` and three times as many, the difference for each row.
    """
    few, many = _medians(turns_of_ranks(1, _few_many, [make, shape, rows], count))
    sent, _ = _medians(turns_of_ranks(2, _send, [make], count))
    return max(many - few, 1e-9) / (2 * rows), sent


def turning(seconds):
    """Return the first number of rows at which two ranks were faster; None if none.

    seconds: {rows: (one device, two ranks)}. From there on they must stay faster.
    """
    faster = [rows for rows, (one, two) in sorted(seconds.items()) if two < one]
    rows = sorted(seconds)
    while faster and faster != rows[-len(faster):]:
        faster.pop(0)
    return faster[0] if faster else None


def _medians(pairs):
    return tuple(median(side) for side in zip(*pairs))


def _alone_together(make, shape, rows):
    alone, together = make(), BucketDDP(make())
    one, half = _step(alone, (2 * rows, *shape)), _step(together, (rows, *shape))
    return one if dist.get_rank() == 0 else lambda: None, half


def _one_thread_two(make, shape, rows):
    step = _step(make(), (rows, *shape))

    def on(count):
        torch.set_num_threads(count)
        step()
    return partial(on, 1), partial(on, 2)


def _few_many(make, shape, rows):
    net = make()
    return _step(net, (rows, *shape)), _step(net, (3 * rows, *shape))


def _send(make):
    buckets = make_buckets(list(make().parameters()), 25)

    def send():
        for bucket in buckets:
            bucket.start()
            bucket.wait()
    return send, lambda: None


def _step(net, shape):
    """Return a function that takes a step on one minibatch, again and again."""
    X, y = torch.rand(shape), torch.arange(shape[0]) % 2
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), y).backward()
        optimizer.step()
    step()  # the first one makes what the others find
    return step
