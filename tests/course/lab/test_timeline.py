import sys

import cloudpickle
import torch
import torch.distributed as dist

from course.lab import timeline
from course.lab.slowdown import agreed, slow_network, slow_wire
from manual_dp.ranks import DDP, Bucket, BucketDDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_each_message_is_noted_while_the_block_runs():
    def rank_function():
        with (
            timeline.all_reduces() as sizes,
            timeline.all_reduces("broadcast") as others,
            timeline.all_reduces(note=lambda t: (str(t.dtype), t.nbytes)) as sent,
        ):
            dist.all_reduce(torch.ones(3, dtype=torch.float16))
            dist.broadcast(torch.ones(5), 0)
        dist.all_reduce(torch.ones(7))
        return sizes, others, sent

    assert run_ranks(rank_function, 2) == [([3], [5], [("torch.float16", 6)])] * 2


def backward(kind, seconds, bandwidth):
    """Return the events of one backward; a bucket of 64 bytes for each of three layers."""
    model = kind(slow_network(3, seconds, width=4), bucket_cap_mb=1e-6)
    before = model.ready, Bucket.start, Bucket.wait
    with slow_wire(bandwidth):
        events = timeline.backward(
            model, lambda: model(torch.ones(2, 4)).sum().backward()
        )
    assert before == (model.ready, Bucket.start, Bucket.wait)  # as if nobody had looked
    return events


def test_without_overlap_every_bucket_starts_after_the_last_gradient():
    for events in run_ranks(backward, 2, BucketDDP, 0, 1e12):
        assert [event.what for event in events] == ["ready"] * 3 + ["wait"] + [
            "start",
            "arrive",
        ] * 3 + ["end"]
        assert [(e.name, e.bucket) for e in events if e.what == "ready"] == [
            ("layer 3.weight", 0),
            ("layer 2.weight", 1),
            ("layer 1.weight", 2),
        ]
        assert [e.bucket for e in events if e.what == "arrive"] == [0, 1, 2]
        assert events[0].time >= 0


def test_with_overlap_the_clock_shows_which_bucket_travels_while_a_layer_works():
    # a layer takes two ticks, a bucket one
    events = agreed(lambda: run_ranks(backward, 2, DDP, 0.2, 64 / 0.1)[1], tick=0.1)
    assert [(e.time, e.what) for e in events] == [
        (2, "ready"),
        (2, "start"),
        (3, "arrive"),
        (4, "ready"),
        (4, "start"),
        (5, "arrive"),
        (6, "ready"),
        (6, "start"),
        (6, "wait"),
        (7, "arrive"),
        (7, "end"),
    ]
