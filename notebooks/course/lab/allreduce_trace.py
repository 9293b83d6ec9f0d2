"""Trace an all-reduce: who sends what to whom, in which step, in a run of it.

    record      call an all-reduce over tensors, one a rank; list its transfers
    states      the same, and what every rank holds after each step

    traffic     bytes from every rank to every other in a run
    busiest     of these, the bytes out of the rank that sends most
    longest     bytes of each step's longest message
    rounds      the same of a small run, as parts of a tensor
    seconds     how long such rounds would take, by a stated model

An operation runs where its first tensor lives; whatever else it reads from another rank
has to be sent there. A transfer goes into the first step in which its source sends
nothing else and has what it sends, and its target receives nothing else and has sent
what is overwritten. Transfers are taken in the order of the program.
"""

from collections import namedtuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# first, last: which numbers of a rank's tensor, `last` not among them. kind: "add" or
# "copy", what the target did with them. size: bytes.
Transfer = namedtuple("Transfer", "step source target first last kind size")


def record(allreduce, tensors):
    """Call `allreduce(tensors)`; return its transfers in the order of the program.

    tensors: one for each rank, each in memory of its own. What the function makes of
    them belongs to the rank that computes it, so temporaries are seen as well.
    """
    with _Recorder(tensors) as recorder:
        allreduce(tensors)
    return recorder.log


def states(allreduce, world_size):
    """Return (transfers, held) of a run on tensors of `world_size` chunks.

    held[step][rank][chunk], at the start and after each step, counts for each rank how
    often its numbers are in there: [1, 0, 1] is the sum of rank 0's and rank 2's.
    """
    tensors = [
        torch.eye(world_size, dtype=torch.float64)[rank].repeat(world_size)
        for rank in range(world_size)
    ]
    with _Recorder(tensors, watch=True) as recorder:
        allreduce(list(tensors))
    last = len(longest(recorder.log))
    notes = recorder.notes
    for rank, tensor in enumerate(tensors):
        notes.append((last, rank, tensor))
    held = []
    for step in range(last + 1):
        # a rank's later notes replace its earlier ones
        now = {rank: tensor for when, rank, tensor in notes if when <= step}
        held.append(
            [now[rank].view(world_size, -1).tolist() for rank in range(world_size)]
        )
    return recorder.log, held


def traffic(allreduce, tensors):
    """Run `allreduce`; return sent, where sent[a][b] is the bytes from rank a to b."""
    sent = [[0] * len(tensors) for _ in tensors]
    for transfer in record(allreduce, tensors):
        sent[transfer.source][transfer.target] += transfer.size
    return sent


def busiest(sent):
    """Return the bytes that leave the rank that sends most."""
    return max(map(sum, sent))


def longest(transfers):
    """Return the bytes of each step's longest message."""
    steps = [0] * (1 + max((transfer.step for transfer in transfers), default=-1))
    for transfer in transfers:
        steps[transfer.step] = max(steps[transfer.step], transfer.size)
    return steps


def rounds(allreduce, world_size):
    """Run `allreduce`; return for each step its longest message, as parts of a tensor.

    A ring over 4 ranks gives six times 0.25.
    """
    whole = torch.zeros(840 * world_size)  # 840 can be divided by 2, 3, ... 8
    log = record(allreduce, [whole.clone() for _ in range(world_size)])
    return [size / whole.nbytes for size in longest(log)]


def seconds(parts, size, alpha, beta):
    """Return how long rounds take for a tensor of `size` bytes, without a clock.

    parts: from `rounds`. By Hockney's model (1994) a message of b bytes takes
    alpha + beta * b seconds, and a round as long as its longest message; adding takes
    no time.
    """
    return len(parts) * alpha + sum(parts) * size * beta


# `home`: the memory that it lies in. first, last: as in Transfer.
Place = namedtuple("Place", "home first last size")


class _Recorder(TorchDispatchMode):
    """See every tensor operation of a block; log what it reads from another rank.

    log: the transfers. notes, with `watch`: (step, rank, what it then holds).
    """

    def __init__(self, tensors, watch=False):
        super().__init__()
        self.tensors, self.log, self.notes = list(tensors), [], []
        # temporaries stay alive: the memory of a freed one would be given to another
        self.keep = list(tensors)
        self.owner = {_home(tensor): rank for rank, tensor in enumerate(tensors)}
        self.own = set(self.owner)  # without the temporaries, which join `owner` later
        # of each rank, the step of its last message out and in
        self.sent, self.received = [-1] * len(tensors), [-1] * len(tensors)
        self.ready = {}  # of places: the first step in which they can be sent
        self.gone = {}  # of places: the last step in which they are sent
        self.watch = watch
        if watch:
            for rank, tensor in enumerate(tensors):
                self.notes.append((0, rank, tensor.clone()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = [_place(tensor) for tensor in _tensors(args)]
        read = [place for place in read if place.home in self.owner]
        if not read or func.is_view:
            return func(*args, **(kwargs or {}))
        here = self.owner[read[0].home]  # the operation runs where its first tensor is
        local = [place for place in read if self.owner[place.home] == here]
        ready = max(_latest(self.ready, place) for place in local)
        kind = "copy" if "copy" in str(func) else "add"
        for place in read:
            if self.owner[place.home] != here:
                ready = max(ready, 1 + self._send(place, read[0], kind))
        out = func(*args, **(kwargs or {}))
        # without an output, it has written into its first tensor
        for tensor in _tensors(out) or _tensors(args)[:1]:
            place = _place(tensor)
            self.owner.setdefault(place.home, here)
            self.keep.append(tensor)
            _note(self.ready, place, ready)
        if self.watch:
            step = self.received[here] + 1
            self.notes.append((step, here, self.tensors[here].clone()))
        return out

    def _send(self, place, into, kind):
        """Log a transfer from a place to the rank of `into`; return its step."""
        source, target = self.owner[place.home], self.owner[into.home]
        step = max(
            self.sent[source] + 1,
            self.received[target] + 1,
            _latest(self.ready, place),
            _latest(self.gone, into),
        )
        self.sent[source] = self.received[target] = step
        _note(self.gone, place, step)
        # numbers of a temporary say nothing about a rank's tensor: take the other end's
        numbers = into if into.home in self.own else place
        self.log.append(
            Transfer(
                step, source, target, numbers.first, numbers.last, kind, place.size
            )
        )
        return step


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _home(tensor):
    """Return the address of the memory that a tensor and its views share.

    On the device "meta" there is no memory: then the address of its storage object.
    """
    storage = tensor.untyped_storage()
    return storage.data_ptr() or storage._cdata


def _place(tensor):
    """Return the Place of a tensor; if it has gaps, they belong to the place."""
    first, length = tensor.storage_offset(), tensor.numel()
    if length and not tensor.is_contiguous():
        length = 1
        for size, stride in zip(tensor.shape, tensor.stride()):
            length += (size - 1) * stride
    return Place(_home(tensor), first, first + length, tensor.nbytes)


def _latest(notes, place):
    """Return the latest step noted of what overlaps this place; 0 if there is none."""
    latest = 0
    for (first, last), step in notes.get(place.home, {}).items():
        if first < place.last and place.first < last:
            latest = max(latest, step)
    return latest


def _note(notes, place, step):
    """Note a step of a place in {home: {(first, last): step}}; a later one stays."""
    steps = notes.setdefault(place.home, {})
    key = place.first, place.last
    steps[key] = max(step, steps.get(key, 0))
