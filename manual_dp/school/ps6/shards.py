"""What the parts of problem set 6 share: uneven shards, and values rank by rank.

    draw_sizes   how many rows each rank has
    rows         a tensor, from lists
    variance     the biased one, of each feature
    lists        nested lists, from a tensor a rank
    on_all       the same on every rank
    each         one of the things that every rank returned
"""

import torch

SMALL = {1: (), 2: (), 3: (1,), 4: (0, 1)}  # by world size: sizes that must occur


def draw_sizes(random, world_size):
    """Draw how many rows each rank has, no two the same."""
    small = SMALL[world_size]
    sizes = [*small, *random.sample(range(2, 7), world_size - len(small))]
    return random.sample(sizes, world_size)


def rows(values, *shape):
    """Return a tensor of `values`; with `shape`, also where there are no rows."""
    values = torch.tensor(values, dtype=torch.float64)
    return values.reshape(-1, *shape) if shape else values


def variance(x):
    """Return the mean squared distance from the mean; NaN where there are no rows."""
    return ((x - x.mean(0)) ** 2).mean(0)


def lists(tensors):
    """Return the numbers of each tensor."""
    return [tensor.detach().tolist() for tensor in tensors]


def on_all(world_size, tensor):
    """Return the numbers of `tensor`, once for each rank."""
    return lists([tensor] * world_size)


def each(got, name):
    """Return what each rank returned under `name`."""
    return [rank[name] for rank in got["ranks"]]
