"""Weigh a network: what it computes, and what its ranks send.

    forward_flops    floating-point operations of one forward of one image
    step_flops       those of forward and backward of a minibatch
    gradient_bytes   what each rank hands to the all-reduce in a step
    per_byte         operations of a step for each of these bytes
    shapes           the shape of what a layer returns
    operations       how many tensor operations a function starts

A multiplication and an addition are two operations. Convolutions and matrix products
are counted, as torch runs them; the rest is small beside them.
"""

import copy

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


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
