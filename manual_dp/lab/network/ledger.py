"""A ledger of what an all-reduce sends: step by step, from whom, to whom, how much.

    Ledger       adds up transfers: of each step, of each rank, over all
    Transfer     step, source, target, bytes: one line of the ledger
    record       run an all-reduce on tensors without memory, and list its transfers
    as_ledger    the ledger of a list of transfers

A transfer goes into the first step in which its source has nothing else to send, its
target nothing else to receive, and the source holds what it sends. Of tensors on the
device "meta" torch knows the shape and keeps no numbers, so 10 GB a rank cost nothing.
The core's `_check` refuses them. It is left out here; all else runs as it stands.
"""

import importlib
from collections import namedtuple
from unittest.mock import patch

import torch

from manual_dp.lab.cost import Meter, home

Transfer = namedtuple("Transfer", "step source target size")
Step = namedtuple("Step", "transfers inside between size")


class Ledger:
    """Count transfers step by step: `steps`, and the bytes `sent` by each rank.

    node_of: the node of each rank; without it all ranks are on one. A step has its
    number of `transfers`, its `size` (all bytes), the longest message `inside` a node,
    and the most bytes that go `between` one node and the others, either way. None
    stands for no such message.
    """

    def __init__(self, world_size, node_of=None):
        self.node_of = torch.tensor(node_of or [0] * world_size)
        if len(self.node_of) != world_size:
            raise ValueError(f"node_of has {len(self.node_of)} ranks, world_size is "
                             f"{world_size}")
        self.sent = torch.zeros(world_size, dtype=torch.int64)
        self.one_node = bool((self.node_of == self.node_of[0]).all())
        self.steps = []

    def step(self, source, target, size):
        """Note a step: three tensors of int64, with an element for each transfer."""
        self.sent.index_add_(0, source, size)
        inside, between = size, None
        if not self.one_node:
            start, end = self.node_of[source], self.node_of[target]
            crosses = start != end
            inside = size[~crosses]
            between = self._most(start[crosses], end[crosses], size[crosses])
        longest = int(inside.max()) if len(inside) else None
        self.steps.append(Step(len(size), longest, between, int(size.sum())))

    def _most(self, start, end, size):
        """Return the most bytes out of a node, or into one."""
        if not len(size):
            return None
        nodes = torch.zeros(2, int(self.node_of.max()) + 1, dtype=torch.int64)
        nodes[0].index_add_(0, start, size)
        nodes[1].index_add_(0, end, size)
        return int(nodes.max())

    @property
    def transfers(self):
        """Return how many messages were sent."""
        return sum(step.transfers for step in self.steps)

    @property
    def size(self):
        """Return the bytes of all messages."""
        return sum(step.size for step in self.steps)

    @property
    def in_a_row(self):
        """Return the bytes of each step's longest message, added up."""
        return sum(max(step.inside or 0, step.between or 0) for step in self.steps)

    @property
    def busiest(self):
        """Return the bytes that leave the rank that sends most."""
        return int(self.sent.max())


def record(allreduce, world_size, numbers, dtype=torch.float32):
    """Call `allreduce(tensors)` on tensors of so many numbers; list its transfers."""
    tensors = [torch.empty(numbers, dtype=dtype, device="meta")
               for _ in range(world_size)]
    core = importlib.import_module("manual_dp.allreduce")
    with (patch.object(core, "_check", lambda *_: None),
          patch.object(core, "_check_memory", lambda *_: None),
          _Transfers(tensors) as meter):
        allreduce(tensors)
    return meter.log


def as_ledger(transfers, world_size, node_of=None):
    """Return the ledger of a list of transfers."""
    ledger, steps = Ledger(world_size, node_of), {}
    for transfer in transfers:
        steps.setdefault(transfer.step, []).append(transfer[1:])
    for step in sorted(steps):
        ledger.step(*torch.tensor(steps[step]).T)
    return ledger


class _Transfers(Meter):
    def __init__(self, tensors):
        super().__init__(tensors)
        self.log = []
        self.read = [[] for _ in tensors]     # what each rank sent: (step, place)
        self.written = [[] for _ in tensors]  # what each rank received

    def send(self, there, here, tensor, into, name):
        got, put = _place(tensor), _place(into)
        step = 0
        for notes in (self.read[there], self.written[here]):  # one at a time
            step = max(step, notes[-1][0] + 1 if notes else 0)
        step = _after(step, self.written[there], got, 1)  # sent on when it has come
        step = _after(step, self.read[here], put, 0)      # overwritten when it has gone
        self.read[there].append((step, got))
        self.written[here].append((step, put))
        size = tensor.numel() * tensor.element_size()
        self.log.append(Transfer(step, there, here, size))


def _place(tensor):
    first = tensor.storage_offset()
    return home(tensor), first, first + tensor.numel()


def _after(step, notes, place, later):
    """Return the first step from `step` on, `later` than the notes of this place."""
    store, first, end = place
    for noted, (other, begin, last) in reversed(notes):
        if noted + later <= step:
            break  # and those before it are earlier
        if store == other and first < last and begin < end:
            return noted + later
    return step
