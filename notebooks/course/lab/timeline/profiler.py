"""What torch's own profiler says of the steps that `record` notes.

    beside    seconds of each phase on this rank, ours and the profiler's
"""

import os

from torch.profiler import ProfilerActivity, profile

from course.lab.timeline.record import TOGETHER, record
from course.lab.timeline.spans import totals


def beside(model, optimizer, batches, steps=1):
    """Take steps under both; return {phase: (seconds by `record`, by the profiler)}.

    Call it on every rank; the rest as `record`. Wait is a part of backward here.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no lines about itself on stderr
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        spans = record(model, optimizer, batches, steps)
    ours = totals(spans, spans[0].rank)
    ours[TOGETHER] = ours.pop("backward") + ours.pop("wait")
    theirs = dict.fromkeys(ours, 0.0)
    for event in profiled.events():
        if event.name in theirs:
            theirs[event.name] += event.time_range.elapsed_us() / 1e6
    return {name: (ours[name], theirs[name])
            for name in ("load", "forward", TOGETHER, "update")}
