"""A wire between two devices that notes what it carries, forward and backward.

    Wire.send       copy a tensor to another device, and note it
    Wire.log        what was sent, in order: Sent(source, target, what, size)
    Wire.rounds     how many rounds of sends a result needed, there and back
    sends           the same log, of an all-reduce
    transfers       a log with each thing once, for a picture

Devices are known by their number, so that the log says who sent to whom also where
all of them are the one CPU.
"""

import functools
from collections import namedtuple

from manual_dp.lab.cost import Meter

Sent = namedtuple("Sent", "source target what size")


class Wire:
    """Send tensors between `devices`; note each send, and its gradient's way back."""

    def __init__(self, devices):
        self.devices = devices
        self.log = []
        self.nodes = set()  # the sends, as nodes of the autograd graph

    def send(self, tensor, source, target, what):
        """Return a copy of `tensor` on device `target`; gradients flow through it."""
        self._note(tensor, source, target, what)
        copy = tensor.to(self.devices[target], copy=True)
        if copy.requires_grad:
            back = f"{what}, back"
            copy.register_hook(lambda grad: self._note(grad, target, source, back))
            self.nodes.add(copy.grad_fn)
        return copy

    def rounds(self, result):
        """Return the number of rounds in which sends reach `result`, and go back.

        A send that needs what another one brought is a round later. That is the
        longest chain of sends in the autograd graph; backward goes the same way again.
        """
        @functools.cache
        def longest(node):
            before = [longest(n) for n, _ in node.next_functions if n is not None]
            return (node in self.nodes) + max(before, default=0)
        return 2 * longest(result.grad_fn)

    def _note(self, tensor, source, target, what):
        size = tensor.numel() * tensor.element_size()
        self.log.append(Sent(source, target, what, size))


def sends(allreduce, tensors, what):
    """Call `allreduce(tensors)`; return what it sent, in order, as a `Wire.log`."""
    with _Log(tensors, what) as meter:
        allreduce(tensors)
    return meter.log


class _Log(Meter):
    def __init__(self, tensors, what):
        super().__init__(tensors)
        self.what, self.log = what, []

    def send(self, there, here, tensor, into, name):
        done = f"{self.what}, {'copied' if 'copy' in name else 'added'}"
        size = tensor.numel() * tensor.element_size()
        self.log.append(Sent(there, here, done, size))


def transfers(log):
    """List what a log holds, each thing once: (what, bytes, sender).

    The sender is "both" where both devices sent their part of it.
    """
    sizes, senders = {}, {}
    for sent in log:
        sizes[sent.what] = sizes.get(sent.what, 0) + sent.size
        senders.setdefault(sent.what, set()).add(sent.source)
    return [(what, size, "both" if len(senders[what]) > 1 else min(senders[what]))
            for what, size in sizes.items()]
