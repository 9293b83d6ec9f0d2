import itertools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course.lab import timeline
from course.lab.ticks import agreed, slow_network, slow_wire
from course.lab.timeline import PHASES, Pace, Span, idle, length, predict, totals
from manual_dp.models.lenet import LeNet
from manual_dp.ranks import DDP, Bucket, BucketDDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

few = st.integers(0, 5)
STEPS = 3


def test_each_message_is_noted_while_the_block_runs():
    def rank_function():
        with (timeline.all_reduces() as sizes, timeline.all_reduces("broadcast") as others,
              timeline.all_reduces(note=lambda t: (str(t.dtype), t.nbytes)) as sent):
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
        events = timeline.backward(model, lambda: model(torch.ones(2, 4)).sum().backward())
    assert before == (model.ready, Bucket.start, Bucket.wait)  # as if nobody had looked
    return events


def test_without_overlap_every_bucket_starts_after_the_last_gradient():
    for events in run_ranks(backward, 2, BucketDDP, 0, 1e12):
        assert [event.what for event in events] == [
            "ready"] * 3 + ["wait"] + ["start", "arrive"] * 3 + ["end"]
        assert [(e.name, e.bucket) for e in events if e.what == "ready"] == [
            ("layer 3.weight", 0), ("layer 2.weight", 1), ("layer 1.weight", 2)]
        assert [e.bucket for e in events if e.what == "arrive"] == [0, 1, 2]
        assert events[0].time >= 0


def test_with_overlap_the_clock_shows_which_bucket_travels_while_a_layer_works():
    # a layer takes two ticks, a bucket one
    events = agreed(lambda: run_ranks(backward, 2, DDP, 0.2, 64 / 0.1)[1], tick=0.1)
    assert [(e.time, e.what) for e in events] == [
        (2, "ready"), (2, "start"), (3, "arrive"), (4, "ready"), (4, "start"),
        (5, "arrive"), (6, "ready"), (6, "start"), (6, "wait"), (7, "arrive"), (7, "end")]


def recorded(kind, cap):
    """Record LeNet, not slowed; return spans and the number of buckets."""
    model = kind(LeNet(), bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = itertools.repeat((torch.rand(8, 1, 28, 28), torch.arange(8)))
    return timeline.record(model, optimizer, rows, STEPS), len(model.buckets)


@pytest.mark.parametrize("world_size, kind, cap, buckets", [
    (1, DDP, 25, 1), (2, DDP, 0.05, 3), (3, BucketDDP, 0.05, 3)])
def test_a_real_run_has_every_phase_in_order_and_its_all_reduces_in_backward_or_wait(
        world_size, kind, cap, buckets):
    ranks = run_ranks(recorded, world_size, kind, cap, timeout=200)
    assert [count for _, count in ranks] == [buckets] * world_size
    spans = timeline.merge([spans for spans, _ in ranks])
    assert min(span.start for span in spans) == 0 and timeline.buckets(spans) == [
        f"bucket {i + 1}" for i in range(buckets)]
    for rank in range(world_size):
        mine = [span for span in spans if (span.rank, span.lane) == (rank, "compute")]
        assert [span.name for span in mine] == list(PHASES) * STEPS
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
        for bucket in range(buckets):
            sent = [span for span in spans
                    if (span.rank, span.lane) == (rank, f"bucket {bucket + 1}")]
            for span, begin, end in zip(sent, mine[2::5], mine[3::5], strict=True):
                assert begin.start <= span.start <= span.end <= end.end


def test_a_step_of_one_device_is_its_parts_one_after_the_other():
    assert predict(Pace(1, 2, 3, 4, 5), 1, 2) == [
        Span(0, "compute", "load", 0, 1), Span(0, "compute", "forward", 1, 5),
        Span(0, "compute", "backward", 5, 11), Span(0, "compute", "update", 11, 15)]


@given(few, few, few, few, few, st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_one_message_on_equal_ranks_is_waited_for_in_full(
        load, forward, backward, update, wire, world_size, rows, steps):
    pace = Pace(load, forward, backward + 1, update, wire)
    spans, sent = predict(pace, world_size, rows, steps), wire * (world_size > 1)
    assert [totals(spans, rank)["wait"] for rank in range(world_size)] == (
        [steps * sent] * world_size)
    assert length(spans) == steps * (
        load + (forward + backward + 1) * rows + update + sent)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))
def test_everybody_is_as_slow_as_the_slowest(world_size, rows, factor):
    slowed = predict(Pace(), world_size, rows, slow={world_size - 1: factor})
    waits = 2 * rows * (factor - 1)
    assert length(slowed) == 2 * rows * factor + 1 and totals(slowed)["wait"] == waits
    assert idle(slowed) == pytest.approx(
        waits * (world_size - 1) / (length(slowed) * world_size))


@pytest.mark.parametrize("wire, wait", [(2, 1), (4, 2), (8, 6)])
def test_two_buckets_hide_what_backward_leaves_time_for(wire, wait):
    # the first is ready after 2 of 4 ticks, the second at the end
    assert totals(predict(Pace(0, 0, 4, 0, wire), 2, 1, layers=2))["wait"] == wait
