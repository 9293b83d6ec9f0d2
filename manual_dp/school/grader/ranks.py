"""The ranks of a graded answer: `run_ranks` as in a notebook, with wardens forked here.

Child.py offers this as `manual_dp.ranks`. A nursery would be a new Python, which cannot
read the course; nor is one needed in a process that never ran torch on threads.

A rank leaves its result in a file, where an answer that runs in it could leave another.
So what comes back is marked with what the answer does not know.
"""

import functools
import os
import secrets
import socket

from manual_dp.ranks import launch
from manual_dp.ranks.launch import RankError
from manual_dp.ranks.launch.nursery import warden


class Here:
    """Be the nursery in the process that asks for ranks."""

    def connect(self):
        """Return a socket to a new warden, and its pid."""
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                ours.close()
                warden(theirs)
            finally:
                os._exit(0)
        theirs.close()
        return ours, int.from_bytes(ours.recv(8), "little")


launch._nursery = lambda pid: Here()


@functools.wraps(launch.run_ranks)
def run_ranks(function, world_size, *args, **kwargs):
    """Return what launch.run_ranks does, if each rank has come to its result itself."""
    if not callable(function):
        return launch.run_ranks(function, world_size, *args, **kwargs)  # which says so
    mark = secrets.token_hex(8)

    def marked(*args):
        return mark, function(*args)
    results = launch.run_ranks(marked, world_size, *args, **kwargs)
    for rank, result in enumerate(results):
        if type(result) is not tuple or len(result) != 2 or result[0] != mark:
            raise RankError(f"rank {rank} wrote a result that it was not asked for",
                            rank, kind="unreadable")
    return [result for _, result in results]
