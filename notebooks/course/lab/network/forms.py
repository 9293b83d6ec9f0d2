"""The closed forms: what each way sends, by a formula instead of a run.

    steps       how many steps follow each other
    transfers   how many messages there are
    total       the bytes of all of them
    in_a_row    the bytes of each step's longest message, added up
    busiest     the bytes that leave the rank that sends most
    phases      runs of equal steps, which have a price at any number of ranks

N ranks, a tensor of n numbers, g ranks in a node, M = N / g nodes. "Up" rounds up.

                  steps               numbers in a row
    star          2 (N - 1)           2 (N - 1) n
    ring          2 (N - 1)           2 (N - 1) up(n / N)
    tree          2 up(log2 N)        2 up(log2 N) n
    halving-      2 k for N = 2^k,    2 (up(n / 2) + up(n / 4) + ... + up(n / 2^k)),
      doubling    2 k + 2 beyond      and 2 n more beyond
    two-level     2 (g + M - 2)       2 (g - 1) up(n / g) + 2 (M - 1) up(up(n / g) / M)

The total is 2 (N - 1) n for each of them.
"""

from collections import namedtuple

Phase = namedtuple("Phase", "steps inside between")


def phases(way, world_size, numbers, itemsize=4, per_node=None):
    """List the phases of a way: `steps` steps, and the bytes of one in a row.

    inside: the longest message inside a node. between: the most bytes between a node
    and the others. None is no message. Without `per_node` all ranks are on one node;
    with it the way is "ring" or "two-level". Chunks are rounded up to whole numbers.
    """
    if not per_node or per_node >= world_size:
        way = "ring" if way == "two-level" else way
        return [Phase(count, part * itemsize, None)
                for count, part in _runs(way, world_size, numbers, None)]
    if way not in ("ring", "two-level"):
        raise ValueError(f'over nodes way must be "ring" or "two-level", got {way!r}')
    runs = [(count, part * itemsize)
            for count, part in _runs(way, world_size, numbers, per_node)]
    if way == "ring":  # in each step one message leaves each node
        return [Phase(count, part if per_node > 1 else None, part)
                for count, part in runs]
    (inner, chunk), (outer, part) = runs
    found = [Phase(inner, chunk, None), Phase(outer, None, per_node * part)]
    return [phase for phase in found if phase.steps]


def steps(way, world_size, per_node=None):
    """Return how many steps follow each other."""
    return sum(count for count, _ in _runs(way, world_size, 0, per_node))


def in_a_row(way, world_size, numbers, itemsize=4, per_node=None):
    """Return the bytes of each step's longest message, added up."""
    return itemsize * sum(count * part for count, part in
                          _runs(way, world_size, numbers, per_node))


def total(world_size, numbers, itemsize=4):
    """Return the bytes of all messages: the same for every way."""
    return 2 * (world_size - 1) * numbers * itemsize


def transfers(way, world_size, per_node=None):
    """Return how many messages there are."""
    n = world_size
    if way in ("star", "tree"):
        return 2 * (n - 1)
    if way in ("ring", "two-level"):
        return n * steps(way, n, per_node)
    power, levels = _power(n)
    return 2 * levels * power + 2 * (n - power)


def busiest(way, world_size, numbers, itemsize=4, per_node=None):
    """Return the bytes that leave the rank that sends most."""
    n = world_size
    if n == 1:
        return 0
    if way == "star":
        sent = (n - 1) * numbers
    elif way == "tree":
        sent = (n - 1).bit_length() * numbers
    elif way == "ring":
        sent = max(_of_ring(numbers, n))
    elif way == "two-level":
        chunks = [_chunk(numbers, per_node, i) for i in range(per_node)]
        sent = max(inside + max(_of_ring(chunk, n // per_node))
                   for inside, chunk in zip(_of_ring(numbers, per_node), chunks))
    else:
        power, levels = _power(n)
        sent = numbers * (power < n) + numbers + sum(
            _up(numbers, 2**level) for level in range(1, levels))
    return sent * itemsize


def _runs(way, world_size, numbers, per_node):
    """List (steps, numbers of the longest message) of each part of a way."""
    n = world_size
    if way == "star":
        return [(2 * (n - 1), numbers)]
    if way == "ring":
        return [(2 * (n - 1), _up(numbers, n))]
    if way == "tree":
        return [(2 * (n - 1).bit_length(), numbers)]
    if way == "two-level":
        nodes, chunk = n // per_node, _up(numbers, per_node)
        return [(2 * (per_node - 1), chunk), (2 * (nodes - 1), _up(chunk, nodes))]
    if way != "halving-doubling":
        raise ValueError(f"no formula for the way {way!r}")
    power, levels = _power(n)
    return [(2 * (power < n), numbers)] + [
        (2, _up(numbers, 2**level)) for level in range(1, levels + 1)]


def _up(numbers, parts):
    return -(-numbers // parts)


def _power(world_size):
    levels = world_size.bit_length() - 1
    return 2**levels, levels


def _chunk(numbers, parts, i):
    return numbers // parts + (i < numbers % parts)


def _of_ring(numbers, parts):
    """List what each rank of a ring sends: all chunks but one, twice.

    Rank r leaves out chunk r in the first half, and chunk r + 1 in the second.
    """
    return [2 * numbers - _chunk(numbers, parts, i)
            - _chunk(numbers, parts, (i + 1) % parts) for i in range(parts)]
