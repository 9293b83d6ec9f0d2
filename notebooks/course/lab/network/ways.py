"""An all-reduce for nodes, over a list of tensors as the core's.

    two_level          rings inside the nodes, rings between them, and back. The 2D
                       torus of Mikami et al. 2018
    WAYS               every all-reduce over a list by its name

A *node* is a machine with several devices: ranks 0 to g - 1, g to 2g - 1, and so on.
It works in place and returns None. Tensors must be contiguous.
"""

import torch

from manual_dp.allreduce import WAYS as FLAT
from manual_dp.allreduce import allgather, reduce_scatter, ring_allreduce


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


WAYS = {**FLAT, "two-level": two_level}
