"""Count the bytes that autograd keeps for the backward pass.

    keep        call a function; what its forward passes keep, tensor by tensor
    most_kept   the most bytes that were kept at one time while it ran

Forward keeps what backward will need, such as each layer's input. Backward lets go of
it. Two names for one memory count once. Weights are kept too, but they are there in any
case: name them in `besides`, and they do not count. What backward computes again, by
torch.utils.checkpoint, is kept with hooks of its own: it is not seen.
"""

import weakref
from collections import Counter, namedtuple

import torch

Kept = namedtuple("Kept", "shape dtype size")  # size in bytes


def keep(function, besides=()):
    """Call `function()`; return the list of what it kept, in the order of forward.

    besides: tensors that are not counted, such as the model's parameters.
    """
    with _Ledger(besides) as ledger:
        function()
    return ledger.list


def most_kept(function, besides=()):
    """Call `function()`; return the most bytes that were kept at one time."""
    with _Ledger(besides) as ledger:
        function()
    return ledger.most


class _Held:
    """Stand for a kept tensor in the graph; the graph drops it with its last use."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()  # not its graph, which would hold itself for ever


class _Ledger(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, besides):
        super().__init__(self._pack, self._unpack)
        self.free = {_home(tensor) for tensor in besides}
        self.holders, self.list, self.now, self.most = Counter(), [], 0, 0

    def __enter__(self):
        super().__enter__()
        return self

    def _pack(self, tensor):
        held, home = _Held(tensor), _home(tensor)
        if home in self.free:
            return held
        size = tensor.untyped_storage().nbytes()
        if not self.holders[home]:
            self.list.append(Kept(tuple(tensor.shape), tensor.dtype, size))
            self.now += size
            self.most = max(self.most, self.now)
        self.holders[home] += 1
        weakref.finalize(held, self._drop, home, size)
        return held

    @staticmethod
    def _unpack(held):
        return held.tensor

    def _drop(self, home, size):
        self.holders[home] -= 1
        if not self.holders[home]:
            self.now -= size


def _home(tensor):
    return tensor.untyped_storage().data_ptr()
