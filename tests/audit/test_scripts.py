"""Scripts under the command, and bugs of the public record, are judged rightly.

A script takes as long as three starts of python: one bug of each is tried, all of them
with `--all-programs` (`make audits`).
"""

import os
import sys

import pytest

from manual_dp.__main__ import main
from manual_dp.audit import audit, audit_script
from tests.support.record import HANGS, RECORD
from tests.support.scripts.bugs import BUGS, FOLDER, planted

ONE = {"unet": "divided by hand after DDP", "resnet": "lr times the rank",
       "gpt": "clipped before the sum", "classifier": "average copied back on rank 0"}

# the code that is given instead, None for no finding; and why
NAMED_OTHERWISE = {
}


def pytest_generate_tests(metafunc):
    if "bug" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--all-programs")
        metafunc.parametrize("script, bug", [
            (script, bug) for script in BUGS for bug in (BUGS[script] if whole else
                                                         [ONE[script]])])


@pytest.fixture(autouse=True)
def this_package(monkeypatch):
    """Let a script import what this process does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.parametrize("script", BUGS)
def test_a_right_script_is_clean(script, capsys):
    status = main(["audit", "--timeout", "100", "--", str(FOLDER / f"{script}.py")])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "audit: 3 steps on 2 ranks" in out and "clean" in out
    assert "not checked" not in out


def test_a_bug_in_a_script_is_named(script, bug, tmp_path):
    names = BUGS[script][bug][0]
    path = tmp_path / f"{script}.py"
    path.write_text(planted(script, bug))
    report = audit_script([path], timeout=15 if {*names} & {*HANGS} else 100)
    if (script, bug) in NAMED_OTHERWISE:
        names = NAMED_OTHERWISE[script, bug][:1]
    assert next((f.code for f in report.findings), None) in names, report


@pytest.mark.parametrize("name", RECORD)
def test_a_bug_of_the_record_is_named_within_three_steps(name):
    names, broken, *_ = RECORD[name]
    timeout = 15 if {*names} & {*HANGS} else 60
    report = audit(**{"timeout": timeout, **broken()}, steps=3)
    assert report.findings and report.findings[0].code in names, report
    assert report.findings[0].step in (None, 0, 1, 2)


@pytest.mark.parametrize("name", RECORD)
def test_the_right_program_beside_it_has_no_finding(name):
    report = audit(**RECORD[name][2]())
    assert report.findings == [], report


def test_each_of_the_scripts_has_a_bug_that_is_always_tried():
    assert {script: bug in BUGS[script] for script, bug in ONE.items()} == dict.fromkeys(
        BUGS, True)
    assert all(bug in BUGS[script] for script, bug in NAMED_OTHERWISE)
