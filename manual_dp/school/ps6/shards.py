"""What the parts of problem set 6 share: uneven shards, and values rank by rank.

    draw_sizes   how many rows each rank has
    rows         a tensor for each rank, from lists
    variance     the biased one, of each feature
    each         one of the things that every rank returned
"""

from manual_dp.school.tools.plain import tensor

SMALL = {1: (), 2: (), 3: (1,), 4: (0, 1)}  # by world size: sizes that must occur


def draw_sizes(random, world_size):
    """Draw how many rows each rank has, no two the same."""
    small = SMALL[world_size]
    sizes = [*small, *random.sample(range(2, 7), world_size - len(small))]
    return random.sample(sizes, world_size)


def rows(case, shards):
    """Return a tensor for each shard, also where it has no rows."""
    return [tensor(shard).reshape(-1, case["features"]) for shard in shards]


def variance(x):
    """Return the mean squared distance from the mean; NaN where there are no rows."""
    return ((x - x.mean(0)) ** 2).mean(0)


def each(got, name):
    """Return what each rank returned under `name`."""
    return [rank[name] for rank in got["ranks"]]
