"""Slow down the wire and the layers, so that it is certain who waits for whom.

slow_wire      let each all-reduce of this rank take as long as its bytes would
slow_network   make layers whose forward and backward take so long each
in_ticks       round the seconds of events to whole ticks, which a run can repeat
agreed         run until two runs are alike in ticks
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

EARLY = 0.1  # of a tick: a clock may be so far ahead of a sleep


@contextmanager
def slow_wire(bandwidth, start=0):
    """Slow down `dist.all_reduce` of CPU tensors in this block, in this rank.

    bandwidth: bytes a second. A message takes at least its bytes divided by that, and
    `start` seconds before, from the end of the message before. Enter the block on every
    rank.
    """
    real = dist.all_reduce
    wire = ThreadPoolExecutor(1)  # one thread: it carries one message after the other

    def slowed(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        late = Late(real(tensor, op, group, async_op=True))
        wire.submit(late.carry_for, start + tensor.nbytes / bandwidth)
        if async_op:
            return late
        late.wait()

    with wire, patch.object(dist, "all_reduce", slowed):
        yield


class Late:
    """Stand for the `work` of an all-reduce that is still on a slow wire."""

    def __init__(self, work):
        self.work, self.future = work, torch.futures.Future()
        # a work's three methods, as DDP calls them
        self.wait = self.future.wait
        self.is_completed = self.future.done
        self.get_future = lambda: self.future

    def carry_for(self, seconds):
        """Wait for the real work and then `seconds` more; pass on an error of it."""
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


def in_ticks(events, tick):
    """Return events with their seconds in whole ticks, rounded down.

    An event that waits for sleeps may come late, but not early: it keeps its number of
    ticks as long as all delays together are below nine tenths of a tick.
    """
    return [event._replace(time=int(event.time / tick + EARLY)) for event in events]


def agreed(run, tick, tries=9):
    """Repeat `run()`, which returns events, until two agree in ticks.

    A busy machine may delay a run, but hardly two runs in the same way.
    """
    runs = []
    for _ in range(tries):
        runs.append(in_ticks(run(), tick))
        if runs.count(runs[-1]) == 2:
            return runs[-1]
    raise RuntimeError(f"no two of {tries} runs agree: take a longer tick than {tick}")
