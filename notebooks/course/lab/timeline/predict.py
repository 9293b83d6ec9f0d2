"""Predict a timeline without a run: the rules of a step, on a clock that is counted.

    predict    the spans of a run at a stated pace, in ticks

The rules: a rank does one thing after the other. A bucket is ready when backward has
passed its layer. Its all-reduce begins when every rank has it ready and the all-reduce
before is over; it then takes its ticks. A rank updates when all buckets have arrived.
"""

from course.lab.timeline.pace import check
from course.lab.timeline.spans import COMPUTE, Span


def predict(pace, world_size, rows, steps=1, layers=1, slow=None):
    """Return what `paced.run` with the same arguments would, without workers."""
    check(pace, world_size, rows, steps, layers, slow)
    factors = [(slow or {}).get(rank, 1) for rank in range(world_size)]
    spans, now = [], [0] * world_size
    for _ in range(steps):
        now = _step(spans, pace, rows, layers, factors, now)
    return sorted((span for span in spans if span.end > span.start),
                  key=lambda span: (span.rank, span.start, span.lane))


def _step(spans, pace, rows, layers, factors, now):
    """Add the spans of one step that the ranks begin at `now`; return its ends."""
    ready = []  # for each rank, when each bucket is
    for rank, factor in enumerate(factors):
        forward = now[rank] + pace.load
        begin = forward + pace.forward * rows * factor
        layer = pace.backward * rows * factor / layers
        ready.append([begin + layer * (i + 1) for i in range(layers)])
        for name, start, end in (("load", now[rank], forward),
                                 ("forward", forward, begin),
                                 ("backward", begin, ready[-1][-1])):
            spans.append(Span(rank, COMPUTE, name, int(start), int(end)))
    arrived = _send(spans, ready, pace.wire / layers if len(factors) > 1 else 0)
    for rank in range(len(factors)):
        end = arrived + pace.update
        spans.append(Span(rank, COMPUTE, "wait", int(ready[rank][-1]), int(arrived)))
        spans.append(Span(rank, COMPUTE, "update", int(arrived), int(end)))
    return [arrived + pace.update] * len(factors)


def _send(spans, ready, ticks):
    """Add the all-reduce of each bucket; return when the last one is over."""
    over = 0
    for i in range(len(ready[0])):
        over = max(over, *(buckets[i] for buckets in ready)) + ticks
        for rank, buckets in enumerate(ready):
            spans.append(Span(rank, f"bucket {i + 1}", f"all-reduce {i + 1}",
                              int(buckets[i]), int(over)))
    return over
