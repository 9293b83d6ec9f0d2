"""The parts of a step and two clocks, in real time and on a clock that tests move."""

import pytest
import torch

from course.lab.gpu import timeline
from tests.support import on_device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize("check", [on_device.parts, on_device.clocks])
def test_times_on_the_cpu(check):
    check(CPU)


@pytest.fixture
def passing(monkeypatch):
    """Return a function that lets the seconds pass, and returns what it is called with."""
    now = [0.0]

    def passing(seconds, value=None):
        now[0] += seconds
        return value
    monkeypatch.setattr(timeline.time, "perf_counter", lambda: now[0])
    return passing


def test_each_part_has_its_seconds(monkeypatch, passing):
    weight = torch.ones(3, requires_grad=True)
    for name, seconds in (("get_params", 99), ("pack_grads", 99)):
        monkeypatch.setattr(timeline, name, lambda *_, seconds=seconds: passing(seconds))
    monkeypatch.setattr(timeline, "lenet", lambda X, params: passing(1, weight * 1.0))
    monkeypatch.setattr(timeline, "loss", lambda scores, y: scores)
    weight.register_hook(lambda grad: passing(10))
    monkeypatch.setattr(timeline, "allreduce", lambda grads: passing(100))
    monkeypatch.setattr(timeline, "sgd", lambda *_: passing(1000))
    assert timeline.parts(CPU, world_size=2, rows=4, steps=3) == {
        "forward": 2, "backward": 20, "all-reduce": 100, "update": 2000, "whole": 2122}


def test_only_the_clock_that_waits_counts_what_is_still_queued(monkeypatch, passing):
    monkeypatch.setattr(timeline, "wait", lambda device: passing(7))
    found = timeline.clocks(CPU, size=2, products=1, tries=3)
    assert found == {"asked": 0, "done": 7}


def test_on_a_gpu_marks_are_events_in_its_queue(monkeypatch):
    made = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            made.append(self)

        def record(self, stream):
            self.stream, self.place = stream, 10 * len(made)

        def elapsed_time(self, other):  # milliseconds
            return other.place - self.place
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream", device))
    marks = [timeline._mark(GPU) for _ in range(3)]
    assert marks == made and {mark.stream for mark in marks} == {("stream", GPU)}
    assert timeline._between(marks) == [0.01, 0.01, 0.02]


def test_waiting_is_for_a_gpu_alone(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    timeline.wait(CPU)
    timeline.wait(GPU)
    assert waited == [GPU]
