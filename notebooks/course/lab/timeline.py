"""What each rank does, and when: recorded while it runs.

all_reduces     the size of each message that is sent while a block runs
report_events   call a function at each gradient, bucket and wait of a backward
backward        one backward: its events in order of time
"""

import time
from collections import namedtuple
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist

Event = namedtuple("Event", "time what name bucket")


@contextmanager
def all_reduces(name="all_reduce", note=torch.numel):
    """Yield a list; while the block runs, each all-reduce adds its tensor's numel.

    name: another function of dist to record. note: what to add of the tensor instead.
    """
    notes, real = [], getattr(dist, name)

    def noted(tensor, *args, **kwargs):
        notes.append(note(tensor))
        return real(tensor, *args, **kwargs)

    with patch.object(dist, name, noted):
        yield notes


@contextmanager
def report_events(model, note):
    """Call `note(what, name, bucket)` at each event of a backward in this block.

    model: a `BucketDDP` or `DDP`. what: "ready", the gradient `name` of `bucket` is
    there; "start" and "arrive", `bucket` is sent and has come; "wait", all gradients
    are ready. "arrive" is called from another thread.
    """
    number = {bucket: i for i, bucket in enumerate(model.buckets)}
    bucket_of = {p: i for bucket, i in number.items() for p in bucket.params}
    kind = type(model.buckets[0])
    ready, average, start, wait = model.ready, model.average, kind.start, kind.wait
    noted = {}  # of each bucket, the note of its arrival: backward must not overtake it

    def note_ready(p):
        note("ready", model.names[p], bucket_of[p])
        ready(p)

    def note_average(params):
        note("wait", "", None)
        average(params)

    def note_start(bucket):
        note("start", "", number[bucket])
        start(bucket)
        noted[bucket] = bucket.work.get_future().then(
            lambda _: note("arrive", "", number[bucket])
        )

    def note_wait(bucket):
        noted[bucket].wait()
        wait(bucket)

    with (
        patch.object(model, "ready", note_ready),
        patch.object(model, "average", note_average),
        patch.object(kind, "start", note_start),
        patch.object(kind, "wait", note_wait),
    ):
        yield


def backward(model, step):
    """Call `step()`, a forward and backward of `model`; return its events in order.

    Times are seconds from the end of forward. The last event, "end": backward returns.
    """
    events = []

    def note(what, name="", bucket=None):
        events.append(Event(time.perf_counter(), what, name, bucket))

    end_of_forward = model.register_forward_hook(lambda *_: note("begin"))
    with end_of_forward, report_events(model, note):
        step()
        note("end")
    begin, *events = sorted(events, key=lambda event: event.time)
    return [event._replace(time=event.time - begin.time) for event in events]
