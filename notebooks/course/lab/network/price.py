"""The price of an all-reduce, in seconds: alpha a message, and its bytes over the wire.

    seconds    of a `Ledger`, or of the phases of a closed form
    of_steps   of lists of bytes, over one link
    of_way     of a way by its closed form
    cheapest   the way that takes least
    message    of one message on a link

A step takes as long as its slowest message. Messages inside a node have a link each.
All that leaves a node in a step, or enters it, shares that node's one link. Adding the
numbers up takes no time.
"""

from course.lab.network.forms import phases


def seconds(steps, link, between=None):
    """Return the seconds of `steps`, those of a Ledger or phases.

    link: of ranks on one node. between: of a node and the others, `link` if not said.
    """
    between = between or link
    return sum(getattr(step, "steps", 1) * max(message(step.inside, link),
                                               message(step.between, between))
               for step in steps)


def of_steps(steps, link):
    """Return the seconds of `steps`, each a list of the bytes of its messages."""
    return sum(link.alpha + max(step) / link.bandwidth for step in steps)


def of_way(way, world_size, size, link, between=None, per_node=None, itemsize=4):
    """Return the seconds of a way for a tensor of `size` bytes on so many ranks."""
    if world_size == 1:
        return 0.0
    numbers = -(-int(size) // itemsize)
    return seconds(phases(way, world_size, numbers, itemsize, per_node), link, between)


def cheapest(ways, world_size, size, link, between=None, per_node=None):
    """Return (seconds, way) of the way that takes least."""
    return min((of_way(way, world_size, size, link, between, per_node), way)
               for way in ways)


def message(size, link):
    """Return the seconds of a message of `size` bytes; None is no message."""
    return 0.0 if size is None else link.alpha + size / link.bandwidth
