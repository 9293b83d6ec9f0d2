"""A report prints a table and is saved as JSON; what is set aside is a remark."""

import json
import os

import pytest

from manual_dp.audit import Report
from manual_dp.audit.catalogue import WORDS, finding


def report(*codes, ignore=(), **options):
    found = [finding(code, 2.0, f"{code} it is", 1, 0, "w") for code in codes]
    made = Report(found, ["so it is"], 2, 3, **options)
    made.set_aside(ignore)
    return made


def test_each_finding_has_its_number_cause_and_repair_below():
    assert str(Report([finding("sum", 2.0, "twice")], ["so it is"], 2, 3)).splitlines() == [
        "audit: 3 steps on 2 ranks, float64: 1 finding",
        "sum               twice",
        "           cause: gradients are summed over ranks and not divided by the world "
        "size (or", "                  lr is multiplied by it)",
        "          repair: divide by the world size; lr stays, the minibatch is the same",
        "remark            so it is"]


@pytest.mark.parametrize("codes, options, words", [
    ([], {}, "2 ranks, float64: clean"),
    ([], {"unchecked": ["rows: why"]}, "no finding, but not all was checked"),
    (["sum"], {"unchecked": ["rows: why"]}, "1 finding"),
    (["sum", "stale"], {}, "2 findings"), (["sum"], {"ignore": ["sum"]}, "clean"),
    ([], {"precision": "bfloat16"}, "2 ranks, bfloat16: clean")])
def test_the_first_line_says_what_it_comes_to(codes, options, words):
    header = str(report(*codes, **options)).splitlines()[0]
    assert header.startswith("audit: 3 steps on 2 ranks") and header.endswith(words)


def test_what_was_not_checked_stands_before_remarks_and_lines_are_short():
    lines = str(report(unchecked=["rows: " + "why " * 40])).splitlines()
    assert lines[1].startswith("not checked       rows: why") and max(map(len, lines)) <= 88
    assert lines[2].startswith(" " * 18 + "why") and lines[-1] == "remark            so it is"


def test_what_is_set_aside_is_a_remark_and_the_rest_stays():
    found = report("sum", "stale", ignore=["sum"])
    assert [f.code for f in found.findings] == ["stale"]
    assert found.remarks == ["so it is", "sum, ignored: sum it is"]
    found.set_aside(["factor", "stale"])
    assert found.findings == [] and found.remarks[-1] == "stale, ignored: stale it is"


@pytest.mark.parametrize("codes, unchecked, clean", [
    ([], [], True), (["sum"], [], False), ([], ["rows: why"], False)])
def test_a_saved_report_holds_all_but_the_evidence(tmp_path, codes, unchecked, clean):
    report(*codes, unchecked=unchecked, evidence="notes").save(tmp_path / "r.json")
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["clean"] is clean and "evidence" not in saved
    assert (saved["unchecked"], saved["remarks"]) == (unchecked, ["so it is"])
    assert (saved["world_size"], saved["steps"], saved["details"]) == (2, 3, "")
    for code, one in zip(codes, saved["findings"], strict=True):
        assert (one["code"], one["number"], one["parameter"]) == (code, 2.0, "w")
        assert [one["cause"], one["repair"]] == list(WORDS[code])


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")

    def interrupted(part, whole):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report().save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
