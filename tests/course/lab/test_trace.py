import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course.lab import trace
from course.lab.slow import slow_wire
from course.lab.trace import Event
from manual_dp.ranks import DDP, Bucket, BucketDDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def three(seconds=0):
    """Return three layers, whose backward takes so long each."""
    layers = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    for layer in layers:
        layer.register_forward_hook(
            lambda _, __, Y: Y.register_hook(lambda grad: time.sleep(seconds)) and None)
    return layers


def recorded(kind, seconds=0.0, bandwidth=1e12):
    """Return the events of one backward; a bucket of 64 bytes for each layer."""
    model = kind(three(seconds), bucket_cap_mb=1e-6)
    before = model.ready, Bucket.start, Bucket.wait
    with slow_wire(bandwidth):
        events = trace.record(model, lambda: model(torch.ones(2, 4)).sum().backward())
    assert before == (model.ready, Bucket.start, Bucket.wait)  # as if nobody had looked
    return events


def test_sizes_of_messages_are_noted_while_the_block_runs():
    def rank_function():
        with trace.all_reduces() as sizes, trace.all_reduces("broadcast") as others:
            dist.all_reduce(torch.ones(3))
            dist.broadcast(torch.ones(5), 0)
        dist.all_reduce(torch.ones(7))
        return sizes, others
    assert run_ranks(rank_function, 2) == [([3], [5])] * 2


def test_something_else_of_each_message_is_noted_where_it_is_asked_for():
    def rank_function():
        with trace.all_reduces(note=lambda tensor: (str(tensor.dtype), tensor.nbytes)) as sent:
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3, dtype=torch.float16))
        return sent
    assert run_ranks(rank_function, 2) == [[("torch.float32", 12),
                                            ("torch.float16", 6)]] * 2


@pytest.mark.parametrize("kind", [BucketDDP, DDP])
def test_each_gradient_and_bucket_is_noted_once_and_in_order_of_time(kind):
    for events in run_ranks(recorded, 2, kind):
        assert [(e.name, e.bucket) for e in events if e.what == "ready"] == [
            ("2.weight", 0), ("1.weight", 1), ("0.weight", 2)]
        for what in ("start", "arrive"):
            assert [e.bucket for e in events if e.what == what] == [0, 1, 2]
        times = [event.time for event in events]
        assert times == sorted(times) and times[0] >= 0
        assert sum(event.what == "wait" for event in events) == 1
        assert events[-1].what == "end"


def test_without_overlap_every_bucket_starts_after_the_last_gradient():
    for events in run_ranks(recorded, 2, BucketDDP):
        whats = [event.what for event in events]
        assert whats == ["ready"] * 3 + ["wait"] + ["start", "arrive"] * 3 + ["end"]


@pytest.mark.parametrize("rank", [0, 1])
def test_with_overlap_the_clock_shows_which_bucket_travels_while_a_layer_works(rank):
    # a layer takes two ticks, a bucket one
    events = trace.agreed(
        lambda: run_ranks(recorded, 2, DDP, 0.2, 64 / 0.1)[rank], tick=0.1)
    assert [(e.time, e.what) for e in events] == [
        (2, "ready"), (2, "start"), (3, "arrive"), (4, "ready"), (4, "start"),
        (5, "arrive"), (6, "ready"), (6, "start"), (6, "wait"), (7, "arrive"), (7, "end")]


def at(*times):
    return [Event(time, "ready", "p", 0) for time in times]


def test_runs_are_repeated_until_two_agree_in_ticks():
    late = [at(0.1, 0.2), at(0.1, 0.31), at(0.15, 0.47), at(0.14, 0.22), at(0.1, 0.2)]
    runs = iter(late)
    assert trace.agreed(lambda: next(runs), 0.1) == at(1, 2)
    assert len(list(runs)) == 1  # the fourth agreed with the first


def test_a_run_that_is_as_expected_needs_no_second_one():
    runs = iter([at(0.1), at(0.2), at(0.3), at(0.2)])
    assert trace.agreed(lambda: next(runs), 0.1, known=at(2)) == at(2)
    assert next(runs) == at(0.3)
    runs = iter([at(0.1), at(0.2), at(0.1), at(0.1), at(0.7)])  # three that are alike
    assert trace.agreed(lambda: next(runs), 0.1, known=at(7)) == at(1)
    assert next(runs) == at(0.7)


def test_runs_of_which_no_two_agree_are_an_error():
    runs = iter(range(9))
    with pytest.raises(RuntimeError, match="no two of 3 runs agree in ticks of 1 s"):
        trace.agreed(lambda: at(next(runs)), 1, tries=3)
    assert next(runs) == 3


@pytest.mark.parametrize("seconds, ticks", [(0, 0), (0.199, 2), (0.2, 2), (0.285, 2),
                                            (0.3, 3)])
def test_ticks_are_whole_and_rounded_down(seconds, ticks):
    before = [Event(seconds, "ready", "p", 0)]
    assert trace.in_ticks(before, 0.1) == [Event(ticks, "ready", "p", 0)]
