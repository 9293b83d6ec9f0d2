"""Weigh a network: what it computes, what its ranks send, what forward keeps.

    forward_flops    floating-point operations of one forward of one image
    step_flops       those of forward and backward of a minibatch
    gradient_bytes   what each rank hands to the all-reduce in a step
    per_byte         operations of a step for each of these bytes
    shapes           the shape of what a layer returns
    operations       how many tensor operations a function starts
    keep             what the forward passes of a function keep for backward
    most_kept        the most bytes that were kept at one time while it ran

A multiplication and an addition are two operations. Convolutions and matrix products
are counted, as torch runs them; the rest is small beside them. Of what is kept, two
names for one memory count once. What backward computes again, by
torch.utils.checkpoint, is kept with hooks of its own: it is not seen.
"""

import copy
import weakref
from collections import Counter, namedtuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

Kept = namedtuple("Kept", "shape dtype size")  # size in bytes


def forward_flops(net, shape=(3, 32, 32)):
    """Return the operations that one forward of one image of this shape takes."""
    with torch.no_grad():
        return _count(net, (1, *shape), lambda net, X: net(X))


def step_flops(net, rows=1, shape=(3, 32, 32)):
    """Return the operations of forward and backward of `rows` images."""
    return _count(net, (rows, *shape), lambda net, X: net(X).sum().backward())


def gradient_bytes(net):
    """Return the bytes of all gradients: the sum over the parameters that want one."""
    return sum(p.numel() * p.element_size() for p in net.parameters()
               if p.requires_grad)


def per_byte(net, rows, shape=(3, 32, 32)):
    """Return the operations of a step of `rows` images for each byte of gradient."""
    return step_flops(net, rows, shape) / gradient_bytes(net)


def shapes(net, names, rows=1, shape=(3, 32, 32)):
    """Return {name: shape} of what these layers return, for `rows` images."""
    net, seen = _weightless(net), {}
    for name in names:
        net.get_submodule(name).register_forward_hook(
            lambda layer, args, out, name=name: seen.update({name: tuple(out.shape)}))
    net(torch.zeros(rows, *shape, device="meta"))
    return seen


def operations(function):
    """Call `function()`; return how many tensor operations it started on the CPU.

    Forward and backward; views, which compute nothing, are not counted. On a GPU each
    one is at least a kernel that Python has to launch.
    """
    with _Counter() as counter:
        function()
    return counter.count


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


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def _count(net, shape, run):
    net = _weightless(net)
    with FlopCounterMode(display=False) as counter:
        run(net, torch.zeros(shape, device="meta"))
    return counter.get_total_flops()


def _weightless(net):
    """Return a copy that has shapes and no numbers: it costs no time to run.

    In eval mode, where a batch norm takes one row as well.
    """
    return copy.deepcopy(net).float().to("meta").eval()


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
