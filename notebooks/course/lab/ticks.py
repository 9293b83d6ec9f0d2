"""Time in whole ticks: a slow wire and slow layers, so that it is certain who waits.

slow_wire      let each all-reduce of this rank take as long as its bytes would
slow_network   layers whose forward and backward take so long each
in_ticks       what was noted in seconds, in whole numbers that a run can repeat
agreed         runs, until two are alike
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

EARLY = 0.1  # of a tick: what a clock may be ahead of a sleep


@contextmanager
def slow_wire(bandwidth):
    """Slow down `dist.all_reduce` of CPU tensors in this block, in this rank.

    bandwidth: bytes a second. A message takes at least its bytes divided by that, from
    the end of the message before. Enter the block on every rank.
    """
    real = dist.all_reduce

    def slowed(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        late = Late(real(tensor, op, group, async_op=True))
        wire.submit(late.carry, tensor.nbytes / bandwidth)
        if async_op:
            return late
        late.wait()

    with ThreadPoolExecutor(1) as wire, patch.object(dist, "all_reduce", slowed):
        yield


class Late:
    """Stand for the `work` of an all-reduce that is still on a slow wire."""

    def __init__(self, work):
        self.work, self.future = work, torch.futures.Future()
        self.wait, self.is_completed = self.future.wait, self.future.done
        self.get_future = lambda: self.future

    def carry(self, seconds):
        """Let the real work end, and `seconds` pass; an error of it is passed on."""
        try:
            self.work.wait()
            time.sleep(seconds)
        except RuntimeError as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(True)


def slow_network(layers, seconds, width=64, forward=0):
    """Return `layers` linear layers without bias; each one's backward sleeps first.

    They are named "layer 1" and so on, and hold `width` * `width` numbers each.
    seconds, forward: how long each backward and each forward sleeps.
    """

    def slow(layer, X, y_hat):
        time.sleep(forward)
        y_hat.register_hook(lambda grad: time.sleep(seconds))

    network = nn.Sequential()
    for i in range(layers):
        network.add_module(f"layer {i + 1}", nn.Linear(width, width, bias=False))
        network[i].register_forward_hook(slow)
    return network


def in_ticks(seen, tick):
    """Return events with their seconds in whole ticks, rounded down.

    What is made of sleeps is late, and never early: it keeps its numbers as long as all
    delays together are below nine tenths of a tick.
    """
    return [event._replace(time=int(event.time / tick + EARLY)) for event in seen]


def agreed(run, tick, tries=9):
    """Repeat `run()`, which returns events, until two agree in ticks.

    On a busy machine a run may be late, but hardly alike.
    """
    seen = []
    for _ in range(tries):
        seen.append(in_ticks(run(), tick))
        if seen.count(seen[-1]) == 2:
            return seen[-1]
    raise RuntimeError(f"no two of {tries} runs agree: take a longer tick than {tick}")
