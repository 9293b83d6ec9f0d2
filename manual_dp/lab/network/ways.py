"""Two all-reduces that the core has no room for, over a list of tensors as the core's.

    halving_doubling   pairs exchange halves, then halves of halves, and back. Thakur,
                       Rabenseifner and Gropp 2005
    two_level          rings inside the nodes, rings between them, and back. The 2D
                       torus of Mikami et al. 2018
    WAYS               every all-reduce over a list by its name

A *node* is a machine with several devices: ranks 0 to g - 1, g to 2g - 1, and so on.
Each function works in place and returns None. Tensors must be contiguous.
"""

import torch

from manual_dp.allreduce import (
    allgather,
    allreduce,
    reduce_scatter,
    ring_allreduce,
    tree_allreduce,
)


@torch.no_grad()
def halving_doubling(tensors):
    """Replace every tensor by the sum over ranks, by exchanging halves.

    Partners hold the same part of the tensor. Each sends one half of it and sums the
    other, so what they hold is halved in every step. On the way back it doubles. Ranks
    beyond a power of two first give their tensor to a neighbour, and wait for the sum.
    """
    flat = [tensor.view(-1) for tensor in tensors]
    keepers, guests = fold(len(flat))
    for guest in guests:
        flat[guest - 1].add_(flat[guest])
    held = [[flat[rank]] for rank in keepers]  # the part of each, and those before it
    levels = [2**level for level in range((len(keepers) - 1).bit_length())]
    for distance in levels:
        for low, high in pairs(len(keepers), distance):
            ours, theirs = (held[place][-1].tensor_split(2) for place in (low, high))
            ours[0].add_(theirs[0])
            theirs[1].add_(ours[1])
            held[low].append(ours[0])
            held[high].append(theirs[1])
    for distance in reversed(levels):
        for low, high in pairs(len(keepers), distance):
            lower, upper = held[low].pop(), held[high].pop()
            held[high][-1].tensor_split(2)[0].copy_(lower)
            held[low][-1].tensor_split(2)[1].copy_(upper)
    for guest in guests:
        flat[guest].copy_(flat[guest - 1])


@torch.no_grad()
def two_level(tensors, per_node):
    """Replace every tensor by the sum over ranks, with `per_node` ranks in a node.

    First each node sums: afterwards its rank number i holds chunk i. Then the ranks
    number i of all nodes sum that chunk in a ring. Last, each node passes its chunks
    round. Raises ValueError unless the nodes are full.
    """
    nodes = full_nodes(len(tensors), per_node)
    chunks = [tensor.view(-1).tensor_split(per_node) for tensor in tensors]
    for node in nodes:
        reduce_scatter([chunks[rank] for rank in node])
    for i in range(per_node):
        ring_allreduce([chunks[node[i]][i] for node in nodes])
    for node in nodes:
        allgather([chunks[rank] for rank in node])


def fold(world_size):
    """Return (keepers, guests): as many ranks as a power of two, and the others.

    A guest's neighbour, the rank before it, is a keeper.
    """
    power = 2 ** (world_size.bit_length() - 1)
    guests = range(1, 2 * (world_size - power), 2)
    return [rank for rank in range(world_size) if rank not in guests], guests


def pairs(places, distance):
    """List the pairs of places that differ by `distance`, a power of two."""
    return [(i, i + distance) for i in range(places) if not i & distance]


def full_nodes(world_size, per_node):
    """List the ranks of each node."""
    if per_node < 1 or world_size % per_node:
        raise ValueError(f"world_size must be a multiple of per_node, got {world_size} "
                         f"and {per_node}")
    return [range(first, first + per_node) for first in range(0, world_size, per_node)]


WAYS = {"star": allreduce, "ring": ring_allreduce, "tree": tree_allreduce,
        "halving-doubling": halving_doubling, "two-level": two_level}
