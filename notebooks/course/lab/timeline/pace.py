"""How long the parts of a step last, in ticks: what runs and predictions share.

    Pace     ticks of loading, forward, backward, update and all-reduce
    check    is there such a run?
"""

from collections import namedtuple

# Ticks: to load a minibatch, for each row forward and backward, to update, and for
# the all-reduces of all gradients.
Pace = namedtuple("Pace", "load forward backward update wire", defaults=(0, 1, 1, 1, 0))


def check(pace, world_size, rows, steps, layers, slow):
    """Raise ValueError if there is no such run."""
    if min(pace) < 0:
        raise ValueError(f"pace must be ticks >= 0, got {pace}")
    for name, value in (("world_size", world_size), ("rows", rows), ("steps", steps),
                        ("layers", layers)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    for rank in slow or {}:
        if rank not in range(world_size):
            raise ValueError(f"slow must name ranks from 0 to {world_size - 1}, got "
                             f"{rank!r}")
