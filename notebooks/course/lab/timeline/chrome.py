"""Spans as a file in the Chrome trace format, which trace viewers open.

    events    the list of its events
    write     the file

A rank is a process there, and each of its lanes a thread. Chrome opens such a file at
chrome://tracing; ui.perfetto.dev does so in any browser. The format: "Trace Event
Format", Duca and Sinclair 2016.
"""

import json

from course.lab.timeline.spans import COMPUTE, buckets
from manual_dp.files import write_text


def events(spans, unit=1.0):
    """Return the events of the spans: names of ranks and lanes, then a span each.

    unit: seconds in one unit of the spans' times. Events count in microseconds.
    """
    number = {lane: i for i, lane in enumerate([COMPUTE, *buckets(spans)])}
    named = []
    for rank in sorted({span.rank for span in spans}):
        named.append(_meta("process_name", rank, 0, name=f"rank {rank}"))
        named.append(_meta("process_sort_index", rank, 0, sort_index=rank))
        for lane, i in number.items():
            if any((span.rank, span.lane) == (rank, lane) for span in spans):
                named.append(_meta("thread_name", rank, i, name=lane))
                named.append(_meta("thread_sort_index", rank, i, sort_index=i))
    return named + [
        {"ph": "X", "name": span.name, "cat": span.lane, "pid": span.rank,
         "tid": number[span.lane], "ts": 1e6 * unit * span.start,
         "dur": 1e6 * unit * (span.end - span.start)} for span in spans]


def write(path, spans, unit=1.0):
    """Write the spans to a file, as `events` lists them."""
    trace = {"traceEvents": events(spans, unit), "displayTimeUnit": "ms"}
    write_text(path, json.dumps(trace))


def _meta(kind, rank, lane, **args):
    return {"ph": "M", "name": kind, "pid": rank, "tid": lane, "args": args}
