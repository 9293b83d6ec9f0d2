"""What more ranks bring: the laws, and seconds of a step on this machine.

    amdahl        the speed-up, if a part of a step does not get shorter
    fit_amdahl    that part, from steps that were timed
    break_even    how many rows a rank it takes until more ranks are faster
    ranks         one device with all rows beside two ranks with half of them each
    threads       one process on one thread, and on two
    costs         what one row and the all-reduces of a step take, measured apart

Both sides of a measurement take turns in the same processes, and the slowest rank
counts (course.lab.turns). A number is the median of all turns. Every rank has one thread.
"""

from functools import partial
from math import floor
from statistics import linear_regression, median

import torch
import torch.distributed as dist
from torch.nn import functional as F

from course.lab.turns import turns_of_ranks
from manual_dp.ranks import BucketDDP


def amdahl(serial, world_size):
    """Return the speed-up of `world_size` ranks by Amdahl's law.

    serial: the part of one device's time, from 0 to 1, that all ranks take in full. The
    rest is divided by their number. Amdahl 1967.
    """
    return 1 / (serial + (1 - serial) / world_size)


def fit_amdahl(times):
    """Return the serial part of {world_size: time}, by the least squares."""
    b, a = linear_regression([1 / n for n in times], list(times.values()))
    return a / (a + b)


def break_even(row, sending, world_size=2):
    """Return the smallest number of rows a rank at which `world_size` ranks are faster.

    row: time to compute one. sending: time of a step's all-reduces, none hidden.
    One device computes `world_size` times the rows of a rank, but sends nothing.
    """
    return floor(sending / (row * (world_size - 1))) + 1


def ranks(make, shape, rows, count=15):
    """Return the seconds of a step of 2 * `rows` rows: on one device, on two ranks.

    make: returns the network. shape: of one row's input.
    """
    def sides():
        alone, together = make(), BucketDDP(make())
        one, half = _step(alone, (2 * rows, *shape)), _step(together, (rows, *shape))
        return one if dist.get_rank() == 0 else lambda: None, half
    return _medians(2, sides, count)


def threads(make, shape, rows, count=15):
    """Return the seconds of a step of `rows` rows on 1 and on 2 threads."""
    def sides():
        step = _step(make(), (rows, *shape))

        def on(threads):
            torch.set_num_threads(threads)
            step()
        return partial(on, 1), partial(on, 2)
    return _medians(1, sides, count)


def costs(make, shape, rows, count=15):
    """Return the seconds that a row adds to `rows` rows, and of the all-reduces."""
    def few_many():
        net = make()
        return _step(net, (rows, *shape)), _step(net, (3 * rows, *shape))

    def send():
        flat = torch.zeros(sum(p.numel() for p in make().parameters()))
        return partial(dist.all_reduce, flat), lambda: None
    (few, many), (sent, _) = _medians(1, few_many, count), _medians(2, send, count)
    return max(many - few, 1e-9) / (2 * rows), sent


def _medians(world_size, sides, count):
    return [median(side) for side in zip(*turns_of_ranks(world_size, sides, [], count))]


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
