"""Watch a rank at work: what it sums, and when."""

import time
from contextlib import contextmanager
from unittest.mock import patch

import torch.distributed as dist


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
    """Call `step()`, a forward and backward of `model`, a `DDP`; return what was when.

    Seconds are counted from the end of forward. Returns a dict: "ready", a list of
    (name, seconds) in the order of the gradients; "buckets", a list of (start, end);
    "end", when backward returned.
    """
    log = {"ready": [], "buckets": []}
    ready, begin = model.ready, 0.0

    def now():
        return time.perf_counter() - begin

    def note_forward(*_):
        nonlocal begin
        begin = time.perf_counter()

    def note_ready(p):
        log["ready"].append((model.names[p], now()))
        ready(p)

    def note_start(bucket):
        span = [now(), None]
        log["buckets"].append(span)
        start(bucket)
        bucket.work.get_future().then(lambda _: span.__setitem__(1, now()))

    kind = type(model.buckets[0])
    start = kind.start
    with (model.register_forward_hook(note_forward),
          patch.object(model, "ready", note_ready),
          patch.object(kind, "start", note_start)):
        step()
        log["end"] = now()
    return log
