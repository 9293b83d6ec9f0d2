"""A report is a table, and JSON that is written whole or not at all."""

import os

import pytest

from manual_dp.audit import Report
from manual_dp.audit.catalogue import finding


def test_each_finding_has_its_number_cause_and_repair_below():
    report = Report([finding("sum", 2.0, "twice")], ["so it is"], 2, 3)
    assert str(report).splitlines() == [
        "audit: 3 steps on 2 ranks, float64: 1 finding",
        "sum               twice",
        "           cause: gradients are summed over ranks and not divided by the world "
        "size (or", "                  lr is multiplied by it)",
        "          repair: divide by the world size; lr stays, the minibatch is the same",
        "remark            so it is"]
    assert str(Report([], [], 2, 3)) == "audit: 3 steps on 2 ranks, float64: clean"


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")

    def interrupted(part, whole):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Report([], [], 2, 3).save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
