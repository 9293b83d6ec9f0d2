import itertools

import pytest
import torch
from torch.nn import functional as F

from course.lab.timeline import chrome
from course.lab.timeline.record import record
from course.lab.timeline.spans import PHASES, merge
from manual_dp.models.lenet import LeNet
from manual_dp.params import largest_difference
from manual_dp.ranks import DDP, Bucket, BucketDDP, run_ranks

STEPS = 3


def recorded(kind, cap, steps=STEPS):
    """Record LeNet, not slowed; return spans, weights and the number of buckets."""
    torch.manual_seed(0)
    model = kind(LeNet(), bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    X = torch.rand(8, 1, 28, 28)
    before = model.average, Bucket.start, Bucket.wait
    spans = record(model, optimizer, itertools.repeat((X, torch.arange(8))), steps)
    assert before == (model.average, Bucket.start, Bucket.wait)
    return spans, [p.detach() for p in model.parameters()], len(model.buckets)


@pytest.fixture(scope="module", params=[(1, DDP, 25), (2, DDP, 0.05), (3, BucketDDP, 0.05)],
                ids=["one rank", "two ranks", "three ranks, after backward"])
def real(request):
    world_size, kind, cap = request.param
    ranks = run_ranks(recorded, world_size, kind, cap, timeout=200)
    return merge([spans for spans, *_ in ranks]), world_size, ranks[0][2]


def test_a_real_run_has_every_phase_and_every_bucket_of_each_step_on_every_rank(real):
    spans, world_size, buckets = real
    for rank in range(world_size):
        names = [span.name for span in spans if span.rank == rank]
        assert {name: names.count(name) for name in names} == dict.fromkeys(
            [*PHASES, *(f"all-reduce {i + 1}" for i in range(buckets))], STEPS)
    assert buckets == (1 if world_size == 1 else 3)


def test_nothing_overlaps_within_a_lane_of_a_real_run(real):
    lanes = {}
    for span in real[0]:
        assert span.start <= span.end
        lanes.setdefault((span.rank, span.lane), []).append(span)
    for mine in lanes.values():
        for before, after in itertools.pairwise(sorted(mine, key=lambda span: span.start)):
            assert before.end <= after.start


def test_phases_follow_each_other_in_their_order_without_a_gap(real):
    spans, world_size, _ = real
    for rank in range(world_size):
        mine = [span for span in spans if (span.rank, span.lane) == (rank, "compute")]
        assert [span.name for span in mine] == list(PHASES) * STEPS
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))


def test_an_all_reduce_begins_in_backward_or_wait_and_ends_before_wait_does(real):
    spans, world_size, _ = real
    for rank in range(world_size):
        mine = [span for span in spans if span.rank == rank]
        waits = [span for span in mine if span.name == "wait"]
        starts = [span.start for span in mine if span.name == "backward"]
        for sent in (span for span in mine if span.lane != "compute"):
            assert any(start <= sent.start and sent.end <= wait.end
                       for start, wait in zip(starts, waits))


def test_an_all_reduce_begins_after_backward_did_and_after_the_one_before(real):
    spans, world_size, buckets = real
    for rank in range(world_size):
        mine = [span for span in spans if span.rank == rank]
        for step in range(STEPS):
            lanes = ["compute"] * 2 + [f"bucket {i + 1}" for i in range(buckets)]
            names = ["forward", "backward"] + [f"all-reduce {i + 1}" for i in range(buckets)]
            starts = [[s.start for s in mine if (s.lane, s.name) == of][step]
                      for of in zip(lanes, names)]
            assert all(a < b for a, b in itertools.pairwise(starts))


def test_an_all_reduce_ends_on_no_rank_before_it_began_on_all(real):
    spans, world_size, buckets = real
    for i in range(buckets):
        sent = [[s for s in spans if (s.rank, s.lane) == (rank, f"bucket {i + 1}")]
                for rank in range(world_size)]
        for together in zip(*sent):
            assert min(s.end for s in together) >= max(s.start for s in together)


def test_the_exported_trace_of_a_real_run_has_every_phase_on_every_rank(real):
    spans, world_size, buckets = real
    bars = [event for event in chrome.events(spans) if event["ph"] == "X"]
    for rank in range(world_size):
        names = {event["name"] for event in bars if event["pid"] == rank}
        assert names == {*PHASES, *(f"all-reduce {i + 1}" for i in range(buckets))}
    for _, mine in itertools.groupby(
            sorted(bars, key=lambda event: (event["pid"], event["tid"], event["ts"])),
            lambda event: (event["pid"], event["tid"])):
        for before, after in itertools.pairwise(mine):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3  # a nanosecond


def test_the_steps_are_those_that_nobody_looks_at():
    [(_, weights, _)] = run_ranks(recorded, 1, DDP, 25)
    torch.manual_seed(0)
    net = LeNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    X = torch.rand(8, 1, 28, 28)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(X), torch.arange(8)).backward()
        optimizer.step()
    assert largest_difference(weights, list(net.parameters())) < 1e-6
