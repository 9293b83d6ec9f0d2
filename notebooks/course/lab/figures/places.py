"""Where ranks stand in a picture, found from who sends to whom.

    places    a star round rank 0, a circle, or a tree, as the sends have it
"""

import math


def places(links, world_size, wide, high):
    """Return each rank's (x, y), with (0, 0) in the middle of a wide x high picture.

    links: the pairs (rank, peer) that send. All through rank 0 is a star; round, or
    anything else with a cycle, is a circle; what is left is a tree below rank 0.
    """
    pairs = {tuple(sorted(link)) for link in links}
    if world_size == 2:
        return [(-wide / 3.4, 0), (wide / 3.4, 0)]
    if all(0 in pair for pair in pairs):
        return [(0, 0), *_circle(world_size - 1, wide, high)]
    parent = _parents(pairs)
    if len(parent) == len(pairs) == world_size - 1 and not _is_round(pairs, world_size):
        return _tree(parent, wide, high)
    return _circle(world_size, wide, high)


def _is_round(pairs, world_size):
    return all(b - a in (1, world_size - 1) for a, b in pairs)


def _circle(number, wide, high):
    angles = [2 * math.pi * i / number for i in range(number)]
    return [(wide / 2 * math.sin(a), -high / 2 * math.cos(a)) for a in angles]


def _parents(pairs):
    """Return for each rank that rank 0 reaches through pairs the one before it."""
    parent, near = {}, [0]
    for rank in near:  # grows on the way: ranks nearer to rank 0 come first
        for pair in sorted(pairs):
            peer = sum(pair) - rank
            if rank in pair and peer and peer not in parent:
                parent[peer] = rank
                near.append(peer)
    return parent


def _tree(parent, wide, high):
    children = {rank: [] for rank in (0, *parent)}
    depth, column, leaves = {0: 0}, {}, 0
    for rank, above in parent.items():
        children[above].append(rank)
        depth[rank] = depth[above] + 1
    for rank in _down(0, children):
        if not children[rank]:
            column[rank], leaves = leaves, leaves + 1
    for rank in sorted(children, key=depth.get, reverse=True):
        if children[rank]:
            mine = [column[child] for child in children[rank]]
            column[rank] = sum(mine) / len(mine)
    deep = max(depth.values())
    return [((column[rank] / max(leaves - 1, 1) - 0.5) * wide,
             (depth[rank] / deep - 0.5) * high) for rank in sorted(children)]


def _down(rank, children):
    yield rank
    for child in children[rank]:
        yield from _down(child, children)
