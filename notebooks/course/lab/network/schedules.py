"""The same all-reduces as schedules: each step's transfers, without tensors.

    run         count a way on up to thousands of ranks, in a `Ledger`
    SCHEDULES   a generator of steps for each way: (source, target, numbers)

The core moves one chunk at a time, in Python. A ring of 4,096 ranks would have 33
million of them. Here the transfers of a step are three vectors, so a step costs the
same few operations on 2 ranks and on 4,096. Tests hold each schedule against a run of
the function itself, transfer by transfer.
"""

import torch

from course.lab.network.ledger import Ledger
from course.lab.network.ways import fold, full_nodes, pairs


def run(way, world_size, numbers, itemsize=4, per_node=None, node_of=None):
    """Count `way`, a name of SCHEDULES, on tensors of so many numbers; return a Ledger.

    itemsize: bytes of a number. per_node: ranks in a node; "two-level" needs it. The
    nodes hold neighbouring ranks, unless `node_of` says the node of each rank.
    """
    if way not in SCHEDULES:
        raise ValueError(f"way must be one of {', '.join(SCHEDULES)}, got {way!r}")
    if world_size < 1 or numbers < 0:
        raise ValueError("need world_size >= 1 and numbers >= 0, got "
                         f"{world_size} and {numbers}")
    if way == "two-level" and not per_node:
        raise ValueError("two-level needs per_node, the ranks in a node")
    if per_node and not node_of:
        node_of = [rank // per_node for rank in range(world_size)]
    ledger = Ledger(world_size, node_of)
    sizes = [per_node] if way == "two-level" else []
    for source, target, count in SCHEDULES[way](world_size, numbers, *sizes):
        ledger.step(source, target, count * itemsize)
    return ledger


def split(numbers, parts):
    """Return the sizes of `tensor_split`: the first ones are larger by one."""
    small, more = divmod(numbers, parts)
    return small + (torch.arange(parts) < more).long()


def star(world_size, numbers):
    """Yield the steps of `allreduce`: each rank to rank 0, then rank 0 to each."""
    for rank in range(1, world_size):
        yield _one(rank, 0, numbers)
    for rank in range(1, world_size):
        yield _one(0, rank, numbers)


def ring(world_size, numbers):
    """Yield the steps of `ring_allreduce`."""
    ranks, sizes = torch.arange(world_size), split(numbers, world_size)
    peers = (ranks + 1) % world_size
    for first in (-1, 0):  # reduce_scatter, allgather
        for step in range(world_size - 1):
            yield ranks, peers, sizes[(ranks + first - step) % world_size]


def tree(world_size, numbers):
    """Yield the steps of `tree_allreduce`."""
    steps = []
    for distance in [2**i for i in range((world_size - 1).bit_length())]:
        parents = torch.arange(0, world_size - distance, 2 * distance)
        steps.append((parents + distance, parents,
                      torch.full_like(parents, numbers)))
    yield from steps
    for children, parents, sizes in reversed(steps):
        yield parents, children, sizes


def halving(world_size, numbers):
    """Yield the steps of `halving_doubling`."""
    keepers, guests = (torch.tensor(list(ranks)) for ranks in fold(world_size))
    whole = torch.full_like(guests, numbers)
    if len(guests):
        yield guests, guests - 1, whole
    held = torch.full_like(keepers, numbers)
    back = []
    for distance in [2**i for i in range((len(keepers) - 1).bit_length())]:
        low, high = torch.tensor(pairs(len(keepers), distance)).T
        upper = held[low] // 2
        lower = held[low] - upper
        source, target = (keepers[torch.cat(ends)] for ends in ((low, high),
                                                                (high, low)))
        yield source, target, torch.cat([upper, lower])
        back.append((source, target, torch.cat([lower, upper])))
        held[low], held[high] = lower, upper
    yield from reversed(back)
    if len(guests):
        yield guests - 1, guests, whole


def two_level(world_size, numbers, per_node):
    """Yield the steps of `two_level`."""
    nodes = len(full_nodes(world_size, per_node))
    ranks, chunks = torch.arange(world_size), split(numbers, per_node)
    node, place = ranks // per_node, ranks % per_node
    inside = node * per_node + (place + 1) % per_node
    across = (node + 1) % nodes * per_node + place
    parts = torch.stack([split(int(chunk), nodes) for chunk in chunks])
    for step in range(per_node - 1):
        yield ranks, inside, chunks[(place - 1 - step) % per_node]
    for first in (-1, 0):
        for step in range(nodes - 1):
            yield ranks, across, parts[place, (node + first - step) % nodes]
    for step in range(per_node - 1):
        yield ranks, inside, chunks[(place - step) % per_node]


def _one(source, target, numbers):
    return torch.tensor([source]), torch.tensor([target]), torch.tensor([numbers])


SCHEDULES = {"star": star, "ring": ring, "tree": tree, "halving-doubling": halving,
             "two-level": two_level}
