"""A board over the group's store: each rank puts something there, and nobody waits.

No collective is disturbed: the store is that of the process group.
"""

import pickle
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from manual_dp.audit.private import group_store

TURNS = {}  # how many boards of a name there have been in this process


class Board:
    """Hold what ranks put under a name; every rank makes as many boards of a name."""

    def __init__(self, name):
        self.turn = TURNS.get(name, 0) + 1
        TURNS[name] = self.turn
        self.store = dist.PrefixStore(f"audit.{name}", group_store())
        self.rank, self.ranks = dist.get_rank(), range(dist.get_world_size())

    def put(self, said, last=True):
        """Put it there, in place of what this rank put before; last: is it the last?"""
        self.store.set(f"{self.turn}/{self.rank}", pickle.dumps(said))
        if last:
            self.store.set(f"{self.turn}/last {self.rank}", "1")

    def complete(self):
        """Return whether every rank has put its last."""
        return self.store.check([f"{self.turn}/last {rank}" for rank in self.ranks])

    def all(self, timeout):
        """Return what each rank has put last by now, None for one without anything.

        timeout: seconds that this rank waits for the last of the others.
        """
        seconds = timedelta(seconds=max(0.05, timeout))
        with suppress(RuntimeError):
            self.store.wait(
                [f"{self.turn}/last {rank}" for rank in self.ranks], seconds
            )
        said = []
        for rank in self.ranks:
            there = self.store.check([f"{self.turn}/{rank}"])
            said.append(
                pickle.loads(self.store.get(f"{self.turn}/{rank}"))  # noqa: S301 (ours)
                if there
                else None
            )
        return said

    def clear_previous(self):
        """Delete what this rank put on the board before: all have read it."""
        for key in (
            f"{self.turn - 1}/{self.rank}",
            f"{self.turn - 1}/last {self.rank}",
        ):
            if self.turn > 1:
                self.store.delete_key(key)
