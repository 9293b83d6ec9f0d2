"""What a number of ranks brings, as formulas: no clock is read.

    speedup       how many times as fast as one device
    efficiency    the speed-up for each rank
    amdahl        the speed-up, if a part of a step does not get shorter
    fit_amdahl    that part, from steps that were timed
    break_even    how many rows a rank it takes until more ranks are faster
"""

from math import floor


def speedup(one, many):
    """Return how many times as fast: the time of `one` device by that of `many`."""
    return one / many


def efficiency(one, many, world_size):
    """Return the speed-up for each of `world_size` ranks: 1 if no time is lost."""
    return speedup(one, many) / world_size


def amdahl(serial, world_size):
    """Return the speed-up of `world_size` ranks by Amdahl's law.

    serial: the part of one device's time, from 0 to 1, that all ranks take in full. The
    rest is divided by their number. Amdahl 1967.
    """
    _check_serial(serial)
    _check_ranks(world_size)
    return 1 / (serial + (1 - serial) / world_size)


def fit_amdahl(times):
    """Return the serial part that fits {world_size: time of a step} best.

    The time is a + b / world_size with the least squares; the part is a / (a + b).
    Two world sizes or more are needed. Raises ValueError if no part from 0 to 1 fits:
    then more ranks are not only less useful, but slower, or faster than they could be.
    """
    if len(times) < 2:
        raise ValueError(f"times must have two world sizes or more, got {times}")
    xs, ys = [1 / n for n in times], list(times.values())
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    b = (sum((u - x) * (v - y) for u, v in zip(xs, ys))
         / sum((u - x) ** 2 for u in xs))
    a = y - b * x
    serial = a / (a + b)
    if not -1e-9 <= serial <= 1 + 1e-9:
        raise ValueError(f"no serial part from 0 to 1 fits {times}, the best is "
                         f"{serial:.3g}")
    return min(max(serial, 0.0), 1.0)


def break_even(row, sending, world_size=2):
    """Return the smallest number of rows a rank at which `world_size` ranks are faster.

    row: time to compute one row. sending: time of a step's all-reduces, none of which
    is hidden. One device computes `world_size` times the rows of a rank, but sends
    nothing.
    """
    if row <= 0 or sending < 0:
        raise ValueError(f"row must be > 0 and sending >= 0, got {row} and {sending}")
    _check_ranks(world_size)
    if world_size == 1:
        raise ValueError("world_size must be 2 or more: one device is not faster than "
                         "itself")
    return floor(sending / (row * (world_size - 1))) + 1


def _check_serial(serial):
    if not 0 <= serial <= 1:
        raise ValueError(f"serial must be a part from 0 to 1, got {serial!r}")


def _check_ranks(world_size):
    if not world_size >= 1:
        raise ValueError(f"world_size must be >= 1, got {world_size!r}")
