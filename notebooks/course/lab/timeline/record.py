"""Note the steps of a real run on each rank: load, forward, backward, wait, update.

    record     take some steps on this rank; return its spans

A step is that of DDP by hand. "backward" ends when the last gradient is computed;
"wait" is what then is left until all buckets hold the mean. Each bucket has a lane of
its own, from the start of its all-reduce until it is done. On a GPU the phases are what
the program waits for: work that it only asks for is not in them.
"""

import torch.distributed as dist
from torch.nn import functional as F
from torch.profiler import record_function

from course.lab import trace
from course.lab.timeline.spans import COMPUTE, Span, clock

TOGETHER = "backward + wait"  # what the profiler sees as one: wait is inside backward


def record(model, optimizer, batches, steps=1, loss=F.cross_entropy):
    """Take `steps` steps of `model`, a `BucketDDP` or `DDP`; return this rank's spans.

    Call it on every rank: they begin together. batches: an iterator of (X, y), of this
    rank. Times are those of `clock`. Where torch's profiler runs, it sees the phases
    by their names, "backward" and "wait" as one.
    """
    rank, spans, starts = dist.get_rank(), [], {}

    def done(name, start, lane=COMPUTE):
        span = Span(rank, lane, name, start, clock())
        spans.append(span)
        return span.end

    def note(what, name, bucket):
        if what == "wait":
            starts["wait"] = done("backward", starts["backward"])
        elif what == "start":
            starts[bucket] = clock()
        elif what == "arrive":
            done(f"all-reduce {bucket + 1}", starts[bucket], f"bucket {bucket + 1}")

    dist.barrier()
    with trace.watched(model, note):
        now = clock()
        for _ in range(steps):
            with record_function("load"):
                X, y = next(batches)
            now = done("load", now)
            with record_function("forward"):
                value = loss(model(X), y)
            starts["backward"] = done("forward", now)
            with record_function(TOGETHER):
                value.backward()
            now = done("wait", starts["wait"])
            with record_function("update"):
                optimizer.step()
                optimizer.zero_grad()
            now = done("update", now)
    return spans
