"""A slow wire and slow layers, made on purpose: so it is certain who waits for whom.

    slow_wire      let each all-reduce of this rank take as long as its bytes would
    Late           the work of such an all-reduce: it ends when the wire is done
    slow_network   layers whose forward and backward take so long each

The real all-reduce starts at once, in the order of the program. When all ranks have
sent theirs, a thread of its own lets the time pass, one message after the other, while
the rank computes.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn


@contextmanager
def slow_wire(bandwidth):
    """Slow down `dist.all_reduce` of CPU tensors in this block, in this rank.

    bandwidth: bytes a second. A message takes at least its bytes divided by that, from
    the end of the message before. Enter the block on every rank.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be bytes a second > 0, got {bandwidth!r}")
    real = dist.all_reduce

    def slowed(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        late = Late(real(tensor, op, group, async_op=True))
        wire.submit(late.carry, tensor.numel() * tensor.element_size() / bandwidth)
        return late if async_op else late.wait() and None
    with ThreadPoolExecutor(1) as wire, patch.object(dist, "all_reduce", slowed):
        yield


class Late:
    """Stand for the `work` of an all-reduce that is still on a slow wire."""

    def __init__(self, work):
        self.work, self.future = work, torch.futures.Future()

    def carry(self, seconds):
        """Let the real work end, and `seconds` pass; an error of it is passed on."""
        try:
            self.work.wait()
            time.sleep(seconds)
        except RuntimeError as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(True)

    def wait(self):
        """Wait until the message is over the wire; return True."""
        return self.future.wait()

    def is_completed(self):
        """Return whether it is, without waiting."""
        return self.future.done()

    def get_future(self):
        """Return the future that ends with it."""
        return self.future


def slow_network(layers, seconds, width=64, forward=0):
    """Return `layers` linear layers without bias; each one's backward sleeps first.

    They are named "layer 1" and so on, and hold `width` * `width` numbers each.
    seconds: that each backward sleeps. forward: seconds that each forward sleeps.
    """
    def slow(layer, X, y_hat):
        time.sleep(forward)
        y_hat.register_hook(lambda grad: time.sleep(seconds))
    network = nn.Sequential()
    for i in range(layers):
        network.add_module(f"layer {i + 1}", nn.Linear(width, width, bias=False))
        network[i].register_forward_hook(slow)
    return network
