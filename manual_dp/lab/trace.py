"""Watch a rank at work: what it sums, and when.

    all_reduces   the size of each message that is sent while a block runs
    record        gradients, buckets and waits of one backward, in order of time
    in_ticks      the same on a coarse clock: whole numbers that a run can repeat
    agreed        runs on that clock until two are alike
"""

import time
from collections import namedtuple
from contextlib import contextmanager
from unittest.mock import patch

import torch.distributed as dist

Event = namedtuple("Event", "time what name bucket")
EARLY = 0.1  # of a tick: what a clock may be ahead of a sleep


@contextmanager
def all_reduces(name="all_reduce"):
    """Yield a list; while the block runs, each all-reduce adds its tensor's numel.

    name: of another function of dist that is watched in its stead.
    """
    sizes, real = [], getattr(dist, name)

    def noted(tensor, *args, **kwargs):
        sizes.append(tensor.numel())
        return real(tensor, *args, **kwargs)
    with patch.object(dist, name, noted):
        yield sizes


def record(model, step):
    """Call `step()`, a forward and backward of `model`; return its events in order.

    model: a `BucketDDP` or `DDP`. An event has `time`, seconds from the end of forward,
    and `what`: "ready", the gradient `name` of `bucket` is there; "start" and "arrive",
    of `bucket`; "wait", nothing is left to compute; "end", backward returns.
    """
    events, begin = [], 0.0
    number = {bucket: i for i, bucket in enumerate(model.buckets)}
    home = {p: i for bucket, i in number.items() for p in bucket.params}
    kind = type(model.buckets[0])
    ready, average, start, wait = model.ready, model.average, kind.start, kind.wait
    noted = {}  # the noting of each arrival, which backward must not overtake

    def note(what, name="", bucket=None):
        events.append(Event(time.perf_counter() - begin, what, name, bucket))

    def note_forward(*_):
        nonlocal begin
        begin = time.perf_counter()

    def note_ready(p):
        note("ready", model.names[p], home[p])
        ready(p)

    def note_average(params):
        note("wait")
        average(params)

    def note_start(bucket):
        note("start", bucket=number[bucket])
        start(bucket)
        noted[bucket] = bucket.work.get_future().then(
            lambda _: note("arrive", bucket=number[bucket]))

    def note_wait(bucket):
        noted[bucket].wait()
        wait(bucket)

    with (model.register_forward_hook(note_forward),
          patch.object(model, "ready", note_ready),
          patch.object(model, "average", note_average),
          patch.object(kind, "start", note_start),
          patch.object(kind, "wait", note_wait)):
        step()
        note("end")
    return sorted(events, key=lambda event: event.time)


def in_ticks(events, tick):
    """Return the events with times in whole ticks of so many seconds, rounded down.

    What is made of sleeps of whole ticks is late, and never early: it keeps its numbers
    as long as all delays together are below nine tenths of a tick.
    """
    return [event._replace(time=int(event.time / tick + EARLY)) for event in events]


def agreed(run, tick, tries=9):
    """Repeat `run()`, which returns events, until two agree; return these in ticks.

    On a busy machine a run may be late by more than a tick, but hardly twice alike.
    Raises RuntimeError if no two of so many tries agree.
    """
    seen = []
    for _ in range(tries):
        events = in_ticks(run(), tick)
        if events in seen:
            return events
        seen.append(events)
    raise RuntimeError(f"no two of {tries} runs agree in ticks of {tick} s: the "
                       "machine is too busy, take a longer tick")
