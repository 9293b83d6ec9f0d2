"""Exercises of lesson 03, the ring's two halves: functions of all ranks' chunks.

    reduce_scatter, allgather   run an answer
    Passed                      see from which rank to which numbers go
    EXERCISES                   with what is drawn, and what is right
"""

from itertools import pairwise

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from manual_dp.school.exercise import Exercise, differ, flat
from manual_dp.school.sums import describe, judge_chunks, judge_copies
from manual_dp.school.tools.plain import numbers, random_numbers, tensor

# ranks, and numbers in each rank's tensor: chunks of one size, of two, of none
SIZES = [(3, 6), (3, 7), (2, 5), (1, 4), (4, 8), (4, 3), (5, 12), (7, 9)]


def reduce_scatter(case, reduce_scatter):
    """Call it on all chunks; return the tensors that these were cut from."""
    return _on_chunks(case, reduce_scatter, _own)


def allgather(case, allgather):
    """Call it on all chunks; return the tensors that these were cut from."""
    return _on_chunks(case, allgather, _joined)


def _on_chunks(case, answer, form):
    kept = [tensor(row) for row in case["tensors"]]
    chunks = [list(t.tensor_split(len(kept))) for t in kept]
    with Passed(kept) as passed:
        returned = answer(chunks)
    return {"tensors": numbers(kept), "list": form(_rows(chunks)),
            "returned": form(_rows(returned)), "receivers": passed.receivers()}


def _own(rows):
    return [row[rank] if any(isinstance(part, list) for part in row[rank:rank + 1])
            else row for rank, row in enumerate(rows)]


def _joined(rows):
    return [flat(row) for row in rows]


def _rows(chunks):
    # what a learner's code returns, or leaves in a list, may be anything
    rows = numbers(chunks) if isinstance(chunks, (list, tuple)) else []
    return [row for row in rows if isinstance(row, list)]


class Passed(TorchDispatchMode):
    """While it is entered, see from which rank to which numbers go.

    What is computed from ranks' numbers, a message, has been at these ranks, one after
    the other; it goes on to the rank into whose memory it is written. Not seen is what
    passes through Python's own numbers, or which way a copy of one chunk has come.
    """

    def __init__(self, tensors):
        super().__init__()
        self.rank = {_home(t): rank for rank, t in enumerate(tensors)}
        self.been = {}  # the home of a message: the ranks where it was
        self.keep = list(tensors)  # a freed home could be given to another tensor
        self.sends = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        been, replaces = [], func.overloadpacket.__name__ in ("copy_", "zero_", "fill_")
        for t in _tensors(args[1:] if replaces else args):
            been = self._join(been, self._been(t))
        for t in _tensors(out):
            rank = self.rank.get(_home(t))
            if rank is None:
                self.been[_home(t)] = been
                self.keep.append(t)
            elif not (replaces and len(been) == 1 and _home(args[1]) in self.been):
                others = [r for r in been if r != rank]
                self.sends |= set(pairwise([*others, rank]))
        return out

    def _been(self, t):
        at = _home(t)
        return [self.rank[at]] if at in self.rank else self.been.get(at, [])

    def _join(self, one, other):
        """Return where a message was that is made of two: in the order of a ring."""
        if len(other) > len(one) or len(one) == len(other) == 1 and (
                one[0] == (other[0] + 1) % len(self.rank)):
            one, other = other, one
        return one + [rank for rank in other if rank not in one]

    def receivers(self):
        """Return for each rank the ranks that it sends to."""
        return [sorted(to for source, to in self.sends if source == rank)
                for rank in sorted(self.rank.values())]


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _home(t):
    return t.untyped_storage().data_ptr() or t.untyped_storage()._cdata


def _draw_chunks(random):
    for world_size, numel in SIZES:
        yield {"tensors": random_numbers(random, world_size, numel)}


def _other_chunk(case):
    yield ("another chunk's numbers have come in: chunks[rank][i] goes to "
           "chunks[peer][i], of the same i", True)


def _judge_reduce_scatter(case, got):
    yield from judge_chunks(case, got, late=_other_chunk)
    yield _went_round(case, got)


def _judge_allgather(case, got):
    yield from judge_copies(case, got, late=_other_chunk)
    yield _went_round(case, got)


def _went_round(case, got):
    """Return None, or the message if a rank sends to others than one neighbour."""
    k, to = len(case["tensors"]), got["receivers"]
    for side in 1, -1:
        if all({*them} <= {(rank + side) % k} for rank, them in enumerate(to)):
            return None
    return differ(f"{describe(case)}; the ranks that each rank sends to", to,
                  [[(rank + 1) % k] for rank in range(k)], [
        ("the numbers are right, but they did not go round the ring: each rank sends "
         "to the next one only, and passes on what has come to it", True)])


EXERCISES = [
    Exercise("03/reduce_scatter", 0, _draw_chunks, _judge_reduce_scatter),
    Exercise("03/allgather", 0, _draw_chunks, _judge_allgather),
]
