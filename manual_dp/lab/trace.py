"""Watch a rank at work.

    all_reduces   the sizes of the tensors handed to `dist.all_reduce`, in order
    record        when DDP by hand had which gradient, and which bucket was under way
"""

import time
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def all_reduces():
    """Yield a list; while the block runs, each all-reduce adds its tensor's numel."""
    sizes, real = [], dist.all_reduce

    def noted(tensor, *args, **kwargs):
        sizes.append(tensor.numel())
        return real(tensor, *args, **kwargs)
    dist.all_reduce = noted
    try:
        yield sizes
    finally:
        dist.all_reduce = real


def record(model, step):
    """Call `step()`, a forward and backward of `model`, a `DDP`; return what was when.

    Seconds are counted from the end of forward. Returns a dict: "ready", a list of
    (name, seconds) in the order of the gradients; "buckets", a list of (start, end);
    "end", when backward returned.
    """
    log = {"ready": [], "buckets": [], "end": 0.0}
    begin = [0.0]
    ready = model.ready

    def now():
        return time.perf_counter() - begin[0]

    def note_ready(p):
        log["ready"].append((model.names[p], now()))
        ready(p)

    def note_start(bucket):
        span = [now(), None]
        log["buckets"].append(span)
        type(bucket).start(bucket)
        bucket.work.get_future().then(lambda _: span.__setitem__(1, now()))

    hook = model.register_forward_hook(
        lambda *_: begin.__setitem__(0, time.perf_counter()))
    model.ready = note_ready
    for bucket in model.buckets:
        bucket.start = lambda bucket=bucket: note_start(bucket)
    try:
        step()
        log["end"] = now()
    finally:
        hook.remove()
        for owner in (model, *model.buckets):
            owner.__dict__.pop("ready", owner.__dict__.pop("start", None))
    return log
