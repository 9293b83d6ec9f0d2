"""Spans of time: which rank did what, in which lane, from when to when.

    Span       rank, lane, name, start, end
    clock      the time in seconds, the same on all ranks of one machine
    merge      the spans of all ranks, on a clock that begins with the first
    in_ticks   the same on a coarse clock: whole numbers that a run can repeat
    buckets    the lanes of the all-reduces, in the order of their numbers
    totals     how long each name took, on one rank
    length     from the first start to the last end
    idle       the part of all ranks' time that they wait for one another

A lane holds what one rank does one after the other: "compute" is what it works on,
and "bucket 1", "bucket 2" are all-reduces under way meanwhile. The ranks of one machine
read one clock, so that their times can be compared as they are. Those of several
machines could not: their clocks would have to be set by one another first.
"""

import time
from collections import namedtuple

from course.lab.trace import EARLY

Span = namedtuple("Span", "rank lane name start end")
COMPUTE = "compute"
PHASES = ("load", "forward", "backward", "wait", "update")  # of the lane "compute"


def clock():
    """Return the seconds of the machine's own clock, which all its processes share."""
    return time.perf_counter_ns() / 1e9


def merge(ranks):
    """Return all spans of all ranks as one list, in order; the first begins at 0."""
    spans = [span for spans in ranks for span in spans]
    begin = min(span.start for span in spans)
    moved = [span._replace(start=span.start - begin, end=span.end - begin)
             for span in spans]
    return sorted(moved, key=lambda span: (span.rank, span.start, span.lane))


def in_ticks(spans, tick):
    """Return the spans with times in whole ticks of so many seconds, rounded down.

    What then takes no time is left out. See `trace.in_ticks`.
    """
    rounded = [span._replace(start=int(span.start / tick + EARLY),
                             end=int(span.end / tick + EARLY)) for span in spans]
    return sorted((span for span in rounded if span.end > span.start),
                  key=lambda span: (span.rank, span.start, span.lane))


def buckets(spans):
    """Return the lanes of all-reduces that the spans have, by number."""
    return sorted({span.lane for span in spans} - {COMPUTE},
                  key=lambda lane: int(lane.split()[-1]))


def totals(spans, rank=0, lane=COMPUTE):
    """Return {name: time} of what a rank did in a lane; of compute, all phases."""
    sums = dict.fromkeys(PHASES, 0) if lane == COMPUTE else {}
    for span in spans:
        if (span.rank, span.lane) == (rank, lane):
            sums[span.name] = sums.get(span.name, 0) + span.end - span.start
    return sums


def length(spans):
    """Return the time from the first start to the last end."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def idle(spans):
    """Return the part of all ranks' time, from 0 to 1, that they wait."""
    ranks = {span.rank for span in spans}
    waits = sum(totals(spans, rank)["wait"] for rank in ranks)
    return waits / (length(spans) * len(ranks))
