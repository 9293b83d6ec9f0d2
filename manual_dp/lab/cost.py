"""Count what crosses between devices.

    traffic     bytes from every rank to every other while a function runs
    busiest     the bytes out of the rank that sends most
    operations  how many tensor operations a function starts
    Meter       what `traffic` counts with; `sends` notes more of each send

An operation runs where its first tensor lives; whatever else it reads from another
rank has to be sent there. That rule is enough to count on one CPU what several
devices would send one another.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def traffic(function, tensors):
    """Call `function(tensors)`; return sent, where sent[a][b] is bytes from a to b.

    tensors: one for each rank, each in memory of its own. What the function makes of
    them belongs to the rank that computes it, so temporaries are counted as well.
    """
    with Meter(tensors) as meter:
        function(tensors)
    return meter.sent


def busiest(sent):
    """Return the bytes that leave the busiest rank."""
    return max(sum(row) for row in sent)


def operations(function):
    """Call `function()`; return how many tensor operations it started on the CPU.

    Forward and backward; views, which compute nothing, are not counted. On a GPU each
    one is at least a kernel that Python has to launch.
    """
    with _Counter() as counter:
        function()
    return counter.count


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class Meter(TorchDispatchMode):
    """While it is entered, see every send between ranks, and add up its bytes."""

    def __init__(self, tensors):
        super().__init__()
        self.owner = {home(tensor): rank for rank, tensor in enumerate(tensors)}
        self.keep = list(tensors)  # a freed home could be given to another rank
        self.sent = [[0] * len(tensors) for _ in tensors]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = [t for t in _tensors(args) if home(t) in self.owner]
        here = self.owner[home(read[0])] if read else None
        for t in read[1:]:
            there = self.owner[home(t)]
            if there != here:
                self.send(there, here, t, read[0], str(func))
        out = func(*args, **(kwargs or {}))
        if read:
            for t in _tensors(out):
                self.owner.setdefault(home(t), here)
                self.keep.append(t)
        return out

    def send(self, there, here, tensor, into, name):
        """Note a tensor on its way from `there` to `here`.

        Called before the operation, whose `name` says what it does to `into`.
        """
        self.sent[there][here] += tensor.numel() * tensor.element_size()


def home(tensor):
    """Return the address of the memory that a tensor and its views share.

    Without any, as on the device "meta", that of what stands for it.
    """
    storage = tensor.untyped_storage()
    return storage.data_ptr() or storage._cdata


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
