import time

import pytest
import torch
import torch.distributed as dist

from course.lab.timeline import spans
from course.lab.timeline.spans import Span
from manual_dp.ranks import run_ranks

RUN = [Span(0, "compute", "forward", 0, 2), Span(0, "compute", "backward", 2, 4),
       Span(0, "bucket 1", "all-reduce 1", 4, 9), Span(0, "compute", "wait", 4, 9),
       Span(1, "compute", "forward", 1, 4), Span(1, "compute", "backward", 4, 10)]


def test_the_ranks_of_one_machine_read_one_clock():
    """Let a message go there and back: the other's time lies between ours."""
    def rank_function():
        times = torch.zeros(1, dtype=torch.float64)
        for _ in range(5):
            if dist.get_rank() == 0:
                begin = spans.clock()
                dist.send(times, 1)
                dist.recv(times, 1)
                yield begin, times.item(), spans.clock()
            else:
                dist.recv(times, 0)
                times[0] = spans.clock()
                dist.send(times, 0)
    for begin, there, end in run_ranks(lambda: list(rank_function()), 2)[0]:
        assert begin <= there <= end


def test_merged_spans_begin_at_zero_and_keep_their_distances():
    late = [span._replace(start=span.start + 7.5, end=span.end + 7.5) for span in RUN]
    merged = spans.merge([late[4:], late[:4]])
    assert sorted(merged) == sorted(RUN)
    assert [span.rank for span in merged] == [0, 0, 0, 0, 1, 1]


def test_ticks_are_rounded_down_and_what_takes_none_is_left_out():
    late = [Span(0, "compute", "load", 0.0, 0.03), Span(0, "compute", "forward", 0.03, 0.25),
            Span(0, "compute", "backward", 0.25, 0.495)]
    assert spans.in_ticks(late, 0.1) == [Span(0, "compute", "forward", 0, 2),
                                         Span(0, "compute", "backward", 2, 5)]


def test_totals_are_of_one_rank_and_lane_and_name_every_phase():
    assert spans.totals(RUN) == {"load": 0, "forward": 2, "backward": 2, "wait": 5,
                                 "update": 0}
    assert spans.totals(RUN, 1)["backward"] == 6
    assert spans.totals(RUN, 0, "bucket 1") == {"all-reduce 1": 5}
    again = RUN + [Span(0, "compute", "forward", 10, 13)]
    assert spans.totals(again)["forward"] == 5


def test_length_and_idle_time_are_of_all_ranks():
    assert spans.length(RUN) == 10
    assert spans.idle(RUN) == 5 / 20  # rank 0 waits 5 of 10, rank 1 never
    assert spans.idle(RUN[4:]) == 0


def test_the_clock_goes_on_in_seconds():
    begin, other = spans.clock(), time.perf_counter()
    time.sleep(0.05)
    assert spans.clock() - begin == pytest.approx(time.perf_counter() - other, abs=0.04)
