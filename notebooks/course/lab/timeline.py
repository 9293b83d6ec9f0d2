"""What each rank does, and when: watched, recorded, predicted.

    all_reduces   the size of each message that is sent while a block runs
    watched       call a function at each gradient, bucket and wait of a backward
    backward      one backward: its events in order of time
    record        the steps of a real run on this rank, as spans
    merge         the spans of all ranks, on a clock that begins with the first
    Pace          how long the parts of a step last, in ticks
    predict       the spans of a run at this pace, without a run
    totals, length, idle, buckets    what to ask of spans

A span lies in a lane: "compute" is what the rank works on, "bucket 1" an all-reduce
under way meanwhile. The ranks of one machine read one clock, so their times compare.
"""

import time
from collections import namedtuple
from contextlib import contextmanager
from operator import attrgetter
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.profiler import record_function

Event = namedtuple("Event", "time what name bucket")
Span = namedtuple("Span", "rank lane name start end")
ORDER = attrgetter("rank", "start", "lane")
COMPUTE = "compute"
PHASES = ("load", "forward", "backward", "wait", "update")  # of the lane "compute"


@contextmanager
def all_reduces(name="all_reduce", note=torch.numel):
    """Yield a list; while the block runs, each all-reduce adds its tensor's numel.

    name: another function of dist to watch. note: what to add of the tensor instead.
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
    there; "start", "arrive" (from another thread), of `bucket`; "wait", all is ready.
    """
    number = {bucket: i for i, bucket in enumerate(model.buckets)}
    home = {p: i for bucket, i in number.items() for p in bucket.params}
    kind = type(model.buckets[0])
    ready, average, start, wait = model.ready, model.average, kind.start, kind.wait
    noted = {}  # of each bucket, the note of its arrival: backward must not overtake it

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


def backward(model, step):
    """Call `step()`, a forward and backward of `model`; return its events in order.

    Times are seconds from the end of forward. The last event, "end": backward returns.
    """
    events = []

    def note(what, name="", bucket=None):
        events.append(Event(time.perf_counter(), what, name, bucket))

    with model.register_forward_hook(lambda *_: note("begin")), watched(model, note):
        step()
        note("end")
    begin, *events = sorted(events, key=lambda event: event.time)
    return [event._replace(time=event.time - begin.time) for event in events]


def record(model, optimizer, batches, steps=1, loss=F.cross_entropy):
    """Take `steps` steps of `model`, a `BucketDDP` or `DDP`; return this rank's spans.

    Call it on every rank: they begin together. batches: an iterator of (X, y). "wait"
    is from the last gradient until all buckets hold the mean.
    """
    rank, spans, starts = dist.get_rank(), [], {}

    def done(name, start, lane=COMPUTE):
        spans.append(Span(rank, lane, name, start, time.perf_counter()))
        return spans[-1].end

    def note(what, name, bucket):
        if what == "wait":
            starts["wait"] = done("backward", starts["backward"])
        elif what == "start":
            starts[bucket] = time.perf_counter()
        elif what == "arrive":
            done(f"all-reduce {bucket + 1}", starts[bucket], f"bucket {bucket + 1}")

    dist.barrier()
    with watched(model, note):
        now = time.perf_counter()
        for _ in range(steps):
            with record_function("load"):
                X, y = next(batches)
            now = done("load", now)
            with record_function("forward"):
                value = loss(model(X), y)
            starts["backward"] = done("forward", now)
            with record_function("backward + wait"):  # one phase to torch's profiler
                value.backward()
            now = done("wait", starts["wait"])
            with record_function("update"):
                optimizer.step()
                optimizer.zero_grad()
            now = done("update", now)
    return spans


def merge(ranks):
    """Return all spans of all ranks as one list, in order; the first begins at 0."""
    begin = min(span.start for spans in ranks for span in spans)
    return sorted((span._replace(start=span.start - begin, end=span.end - begin)
                   for spans in ranks for span in spans), key=ORDER)


# Ticks: to load a minibatch, for each row forward and backward, to update, and for
# the all-reduces of all gradients.
Pace = namedtuple("Pace", "load forward backward update wire", defaults=(0, 1, 1, 1, 0))


def predict(pace, world_size, rows, steps=1, layers=1, slow=()):
    """Return the spans, in ticks, of steps with `rows` rows on each rank.

    layers: that the network has, and so the buckets. slow: {rank: factor}, how many
    times as long it computes. A rank does one thing after the other. A bucket is ready
    when backward has passed its layer. Its all-reduce begins when every rank has it
    ready and the one before is over. A rank updates when all buckets have arrived.
    """
    factors, spans, now = [dict(slow).get(rank, 1) for rank in range(world_size)], [], 0
    sending = pace.wire / layers if world_size > 1 else 0
    for _ in range(steps):
        begins = [now + pace.load + pace.forward * rows * factor for factor in factors]
        ready = [[begin + pace.backward * rows * factor * (i + 1) / layers
                  for begin, factor in zip(begins, factors)] for i in range(layers)]
        over = [0]
        for i, ranks in enumerate(ready):
            over.append(max(over[-1], *ranks) + sending)
            lane = f"bucket {i + 1}", f"all-reduce {i + 1}"
            spans += [Span(rank, *lane, at, over[-1]) for rank, at in enumerate(ranks)]
        for rank, begin in enumerate(begins):
            ends = now, now + pace.load, begin, ready[-1][rank], over[-1]
            for part in zip(PHASES, ends, [*ends[1:], over[-1] + pace.update]):
                spans.append(Span(rank, COMPUTE, *part))
        now = over[-1] + pace.update
    whole = [span._replace(start=int(span.start), end=int(span.end)) for span in spans]
    return sorted((span for span in whole if span.end > span.start), key=ORDER)


def buckets(spans):
    """Return the lanes of all-reduces that the spans have, by number."""
    lanes = {span.lane for span in spans} - {COMPUTE}
    return sorted(lanes, key=lambda lane: int(lane.split()[-1]))


def totals(spans, rank=0):
    """Return {phase: time} of what a rank did one after the other."""
    return {name: sum(span.end - span.start for span in spans
                      if (span.rank, span.name) == (rank, name)) for name in PHASES}


def length(spans):
    """Return the time from the first start to the last end."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def idle(spans):
    """Return the part of all ranks' time, from 0 to 1, that they wait."""
    waits = [totals(spans, rank)["wait"] for rank in {span.rank for span in spans}]
    return sum(waits) / (length(spans) * len(waits))
