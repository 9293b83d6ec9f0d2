"""A ledger of what an all-reduce sends: step by step, from whom, to whom, how much.

    Ledger       adds up transfers: of each step, of each rank, over all
    as_ledger    the ledger of a list of transfers
"""

from collections import namedtuple

import torch

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


def as_ledger(transfers, world_size, node_of=None):
    """Return the ledger of transfers: each has a step, source, target, size."""
    ledger, steps = Ledger(world_size, node_of), {}
    for transfer in transfers:
        steps.setdefault(transfer.step, []).append(
            (transfer.source, transfer.target, transfer.size))
    for step in sorted(steps):
        ledger.step(*torch.tensor(steps[step]).T)
    return ledger
