"""Which rows an epoch still has, after a stop, also for another number of ranks.

    epoch_order   the order of an epoch's rows: the same on every rank and every host
    rows_to_go    what one rank still reads of them
    rows_left     what each rank of a new number reads, none twice and none left out

The order knows nothing of ranks. So a place in it, the number of rows that all ranks
together have read, is enough to go on with any number of ranks.
"""

import torch


def epoch_order(n, seed, epoch):
    """Return the numbers 0 to n - 1 in the order of this epoch, as a tensor."""
    generator = torch.Generator().manual_seed(seed * 10**6 + epoch)
    return torch.randperm(n, generator=generator)


def rows_to_go(order, seen, rank, world_size):
    """Return the rows of `order`, a list, that this rank still reads.

    seen: rows that all ranks together have read, from the front of the order. What is
    left is dealt out in turn to `world_size` ranks, whatever their number was before.
    """
    return order[seen:][rank::world_size]


def rows_left(n, seen, old, new, seed, epoch):
    """Return, for each of `new` ranks, the rows that it still reads in this epoch.

    n: rows of the data set. seen: rows that each of `old` ranks has read, dealt out in
    turn from the epoch's order. Ranks get equally many, or the first ones get one more.
    Raises ValueError if there are not so many rows, or no ranks.
    """
    if old < 1 or new < 1:
        raise ValueError(f"old and new must be at least 1 rank, got {old} and {new}")
    if not 0 <= seen * old <= n:
        raise ValueError(f"{old} ranks cannot have seen {seen} rows each of {n}")
    order = epoch_order(n, seed, epoch).tolist()
    return [rows_to_go(order, seen * old, rank, new) for rank in range(new)]
