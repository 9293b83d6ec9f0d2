"""Watch a rank at work: what it sums, and when.

    all_reduces   the size of each message that is sent while a block runs
    watched       call a function at each gradient, bucket and wait of a backward
    record        the same of one backward, as events in order of time
    in_ticks      the same on a coarse clock: whole numbers that a run can repeat
    agreed        runs on that clock until two are alike
"""

import time
from collections import namedtuple
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist

Event = namedtuple("Event", "time what name bucket")
EARLY = 0.1  # of a tick: what a clock may be ahead of a sleep


@contextmanager
def all_reduces(name="all_reduce", note=torch.numel):
    """Yield a list; while the block runs, each all-reduce adds its tensor's numel.

    name: of another function of dist that is watched in its stead. note: what is
    added of the tensor instead.
    """
    notes, real = [], getattr(dist, name)

    def noted(tensor, *args, **kwargs):
        notes.append(note(tensor))
        return real(tensor, *args, **kwargs)
    with patch.object(dist, name, noted):
        yield notes


@contextmanager
def watched(model, note):
    """Call `note(what, name, bucket)` at each event of a backward in this block.

    model: a `BucketDDP` or `DDP`. what: "ready", the gradient `name` of `bucket` is
    there; "start" and "arrive", of `bucket`; "wait", nothing is left to compute. A note
    of "arrive" comes from another thread, but before the wait for its bucket ends.
    """
    number = {bucket: i for i, bucket in enumerate(model.buckets)}
    home = {p: i for bucket, i in number.items() for p in bucket.params}
    kind = type(model.buckets[0])
    ready, average, start, wait = model.ready, model.average, kind.start, kind.wait
    noted = {}  # the noting of each arrival, which backward must not overtake

    def note_ready(p):
        note("ready", model.names[p], home[p])
        ready(p)

    def note_average(params):
        note("wait", "", None)
        average(params)

    def note_start(bucket):
        note("start", "", number[bucket])
        start(bucket)
        noted[bucket] = bucket.work.get_future().then(
            lambda _: note("arrive", "", number[bucket]))

    def note_wait(bucket):
        noted[bucket].wait()
        wait(bucket)

    with (patch.object(model, "ready", note_ready),
          patch.object(model, "average", note_average),
          patch.object(kind, "start", note_start),
          patch.object(kind, "wait", note_wait)):
        yield


def record(model, step):
    """Call `step()`, a forward and backward of `model`; return its events in order.

    model: a `BucketDDP` or `DDP`. An event has `time`, seconds from the end of forward,
    and `what`, `name` and `bucket` as `watched` notes them; "end": backward returns.
    """
    events, begin = [], 0.0

    def note(what, name="", bucket=None):
        events.append(Event(time.perf_counter() - begin, what, name, bucket))

    def note_forward(*_):
        nonlocal begin
        begin = time.perf_counter()

    with model.register_forward_hook(note_forward), watched(model, note):
        step()
        note("end")
    return sorted(events, key=lambda event: event.time)


def in_ticks(events, tick):
    """Return the events with times in whole ticks of so many seconds, rounded down.

    What is made of sleeps of whole ticks is late, and never early: it keeps its numbers
    as long as all delays together are below nine tenths of a tick.
    """
    return [event._replace(time=int(event.time / tick + EARLY)) for event in events]


def agreed(run, tick, tries=9, rounded=in_ticks, known=None):
    """Repeat `run()`, which returns events, until two agree; return these in ticks.

    rounded(events, tick) brings what a run returns to ticks. known: what is expected,
    in ticks; a run that agrees with it needs no second one, and others must agree three
    times. On a busy machine a run may be late by more than a tick, but hardly alike.
    Raises RuntimeError if no two of so many tries agree.
    """
    seen, alike = [], 2 if known is None else 3
    for _ in range(tries):
        events = rounded(run(), tick)
        seen.append(events)
        if events == known or seen.count(events) == alike:
            return events
    raise RuntimeError(f"no two of {tries} runs agree in ticks of {tick} s: the "
                       "machine is too busy, take a longer tick")
