"""Let ranks tell one another something without a collective: over the group's store.

    Meeting      one call on every rank, in which each may hear what all others say
    Board        what each rank last said, to be read when it does not come
    NotTogether  raised on every rank if some rank is at another call, or does not come

Nothing waits for ever, and collectives that are under way are not disturbed: each
question to the store is answered at once. Rank 0 gathers and sends back, so that the
work grows with the number of ranks and not with its square.
"""

import contextlib
import json
import pickle
import time

import torch.distributed as dist

PAUSES = 0.0005, 0.02  # seconds between two looks: at first, and at most
APART = "is at its call"
BEGIN = {"step": None, "forwards": 0, "in": "make_model"}  # of what a rank says


class NotTogether(RuntimeError):
    """Say which rank did not come to this call, or is at another."""


class Board:
    """Say what this rank does, as a Diary does; read what others said last."""

    def __init__(self, name):
        default = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"manual_dp.{name}.now", default)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.now = dict(BEGIN)
        # a second time in this script it is another matter
        self.turn = self.store.add(f"turns/{self.rank}", 1)
        self.note()

    def note(self, **now):
        """Say what is new."""
        self.now.update(now)
        if self.world_size > 1:
            with contextlib.suppress(RuntimeError):  # who holds the store has gone
                self.store.set(f"{self.turn}/{self.rank}", json.dumps(self.now))

    def read(self):
        """Return {rank: what it said}, of ranks that began as often as this one."""
        keys = {rank: f"{self.turn}/{rank}" for rank in range(self.world_size)}
        try:
            return {rank: json.loads(self.store.get(key)) for rank, key in keys.items()
                    if self.store.check([key])}
        except RuntimeError:
            return {}


class Meeting:
    """Count this rank's call of `name`; other ranks are waited for `timeout` seconds.

    Keys in the store: at/r, the number of calls that rank r began; ended/r, the last
    one that ended in an error, and the words; n.k/r and n.k/all, what rank r and what
    all said in exchange k of call n. Each is deleted when all have read it.
    """

    def __init__(self, name, timeout):
        default = dist.distributed_c10d._get_default_store()
        self.name, self.store = name, dist.PrefixStore(f"manual_dp.{name}", default)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.timeout = timeout
        self.before = [self._read(f"ended/{r}") for r in self._watched()]
        self.call, self.turn = self.store.add(f"at/{self.rank}", 1), 0

    def _watched(self):
        return range(self.world_size if self.rank == 0 else 1)

    def exchange(self, value):
        """Return what every rank says, in a list."""
        if self.world_size == 1:
            return [value]
        self.turn += 1
        self.deadline = time.monotonic() + self.timeout
        place, mine = f"{self.call}.{self.turn}", pickle.dumps(value)
        try:
            if self.rank == 0:
                return self._gather(place, value)
            self.store.set(f"{place}/{self.rank}", mine)
            return self._value(f"{place}/all", 0)
        except NotTogether as error:
            self.store.delete_key(f"{place}/{self.rank}")
            self.store.set(f"ended/{self.rank}", f"{self.call} {error}")
            raise

    def first(self):
        """Return whether this rank is the first that asks this of its call."""
        return self.store.add(f"first/{self.call}", 1) == 1

    def _gather(self, place, value):
        begin, values = time.monotonic(), [value]
        for rank in range(1, self.world_size):
            values.append(self._value(f"{place}/{rank}", rank))
            self.store.delete_key(f"{place}/{rank}")
        if time.monotonic() > begin + 1:  # others may have given up meanwhile
            for rank in range(1, self.world_size):
                self._still_there(rank)
        self.store.set(f"{place}/all", pickle.dumps(values))
        # all have come here: they have read what was said before
        if last := self._read("last"):
            self.store.delete_key(last)
        self.store.set("last", f"{place}/all")
        return values

    def _value(self, key, rank):
        """Return what stands at `key`, which `rank` writes, as soon as it does."""
        pause, longest = PAUSES
        while not self.store.check([key]):
            at = self._at(rank)
            if at > self.call and not self.store.check([key]):
                raise NotTogether(f"{self.name}: rank {rank} {APART} {at}, rank "
                                  f"{self.rank} at {self.call}")
            self._still_there(rank)
            if time.monotonic() > self.deadline:
                raise NotTogether(self._absent(rank))
            time.sleep(pause)
            pause = min(2 * pause, longest)
        return pickle.loads(self.store.get(key))  # noqa: S301 (our own ranks wrote it)

    def _still_there(self, rank):
        """Raise what `rank` raised in this call, or in its own while this one waits."""
        words = self._read(f"ended/{rank}")
        call, _, text = words.partition(" ")
        elsewhere = APART in text and words != self.before[rank]
        if words and (int(call) >= self.call or elsewhere):
            raise NotTogether(text)

    def _absent(self, rank):
        seen = [(r, self._at(r)) for r in range(self.world_size)]
        away = [(r, at) for r, at in seen if at < self.call] or [(rank, self.call)]
        r, at = away[0]
        last = f"was last seen at call {at}" if at else "has not called it yet"
        more = f", nor did {len(away) - 1} others" if len(away) > 1 else ""
        return (f"{self.name}: rank {r} did not come to call {self.call} within "
                f"{self.timeout:g} s (it {last}){more}")

    def _at(self, rank):
        return int(self._read(f"at/{rank}") or 0)

    def _read(self, key):
        return self.store.get(key).decode() if self.store.check([key]) else ""
