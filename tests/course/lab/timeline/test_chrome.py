"""The exported file: every event by the format, and as torch's own profiler writes it."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from course.lab.timeline import chrome
from course.lab.timeline.pace import Pace
from course.lab.timeline.predict import predict

SPANS = predict(Pace(1, 1, 2, 1, 4), 2, 2, steps=2, layers=2)
METADATA = {"process_name": "name", "process_sort_index": "sort_index",
            "thread_name": "name", "thread_sort_index": "sort_index"}


@pytest.fixture
def written(tmp_path):
    chrome.write(tmp_path / "trace.json", SPANS, unit=0.25)
    return json.loads((tmp_path / "trace.json").read_text())


def test_the_file_is_an_object_of_events(written):
    assert set(written) == {"traceEvents", "displayTimeUnit"}
    assert written["displayTimeUnit"] in ("ms", "ns")  # all that the format knows


def test_every_event_has_what_its_phase_asks_for(written):
    for event in written["traceEvents"]:
        assert isinstance(event["name"], str) and event["ph"] in "XM"
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] > 0 and isinstance(event["cat"], str)
        else:
            assert set(event["args"]) == {METADATA[event["name"]]}


def test_each_span_is_one_event_in_microseconds(written):
    bars = [event for event in written["traceEvents"] if event["ph"] == "X"]
    assert [(e["pid"], e["cat"], e["name"], e["ts"], e["dur"]) for e in bars] == [
        (s.rank, s.lane, s.name, 250_000 * s.start, 250_000 * (s.end - s.start))
        for s in SPANS]


def test_ranks_are_named_processes_and_lanes_named_threads_the_first_is_compute(written):
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in written["traceEvents"]
             if e["name"] == "thread_name"}
    assert names == {(rank, i): lane for rank in (0, 1)
                     for i, lane in enumerate(["compute", "bucket 1", "bucket 2"])}
    for event in written["traceEvents"]:
        if event["ph"] == "X":
            assert names[event["pid"], event["tid"]] == event["cat"]
    assert [e["args"]["name"] for e in written["traceEvents"]
            if e["name"] == "process_name"] == ["rank 0", "rank 1"]


def test_ten_buckets_are_in_the_order_of_their_numbers():
    spans = predict(Pace(0, 0, 20, 0, 10), 2, 1, layers=10)
    names = [e["args"]["name"] for e in chrome.events(spans)
             if e["name"] == "thread_name" and e["pid"] == 0]
    assert names == ["compute", *(f"bucket {i + 1}" for i in range(10))]


def test_torchs_profiler_writes_the_same_keys(written, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("load"):
        torch.ones(3)
    profiled.export_chrome_trace(str(tmp_path / "theirs.json"))
    theirs = json.loads((tmp_path / "theirs.json").read_text())["traceEvents"]
    load = next(e for e in theirs if e["ph"] == "X" and e["name"] == "load")
    ours = next(e for e in written["traceEvents"] if e["ph"] == "X")
    assert set(ours) <= set(load)
    meta = {e["name"]: e for e in theirs if e["ph"] == "M"}
    for event in written["traceEvents"]:
        if event["ph"] == "M":
            assert set(event) <= set(meta[event["name"]])
            assert set(event["args"]) == set(meta[event["name"]]["args"])
