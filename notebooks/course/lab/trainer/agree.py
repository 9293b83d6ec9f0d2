"""Do something on some ranks; what fails on one of them fails on all, and is told once.

    agree         call a function; all ranks wait until all have
    once_a_host   the same, but first on one rank of each host, then on the others
"""

import os

import torch.distributed as dist

from manual_dp.ranks.checkpoint import gather


def agree(function, here=True):
    """Return function()'s value, None on ranks where `here` is false.

    All ranks wait for all. If it raises, the lowest rank that failed raises its error,
    and the others end with status 2 and say nothing: one reason is enough.
    """
    value = error = None
    if here:
        try:
            value = function()
        except Exception as caught:  # told to all before it is raised: they would wait
            error = caught
    failed = [rank for rank, bad in enumerate(gather(error is not None)) if bad]
    if failed and failed[0] == dist.get_rank():
        raise error
    if failed:
        raise SystemExit(2)
    return value


def once_a_host(function):
    """Return function()'s value; what it writes, one rank of each host writes.

    It is for a download: the rank with LOCAL_RANK 0 calls it first. When this rank has
    finished on every host, the others call it, and find what is there.
    """
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    value = agree(function, here=first)
    others = agree(function, here=not first)
    return value if first else others
