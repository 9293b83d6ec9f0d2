"""A report is a table: findings, causes first; what was not checked."""

import dataclasses
from pathlib import Path

import pytest

import manual_dp.audit
from manual_dp.audit.notes import Run, Update
from manual_dp.audit.report import WORDS, Report, few, finding, numbers

REPORT = Report(
    [
        finding("gradient", "g", rank=1, step=2),
        finding(
            "stale",
            "the gradient of the step before is in it",
            step=2,
            place="step at train.py, line 3",
        ),
    ],
    ["the loss", "the loss"],
    ["evaluation"],
    ["1 optimizer", "2 losses"],
    2,
    3,
)


def test_causes_stand_before_consequences():
    assert [f.code for f in REPORT.findings] == ["stale", "gradient"]
    assert [*WORDS].index("start-differs") < [*WORDS].index("not-synchronised")
    assert [*WORDS][-1] == "replicas-differ"


def test_the_table_has_cause_and_repair_and_what_was_not_checked():
    lines = str(REPORT).splitlines()
    assert lines[0] == "audit: 2 findings, 1 to check, in 3 steps on 2 ranks (float64)"
    assert lines[1].startswith("stale             the gradient of the step before")
    assert "(since step 3; step at train.py, line 3)" in " ".join(str(REPORT).split())
    assert "           cause: gradients of an earlier step were not cleared" in lines
    assert "          repair: optimizer.zero_grad() on every rank" in str(REPORT)
    assert not any("see:" in line for line in lines)  # neither has an entry of its own
    clip = str(Report([finding("clip", "c")])).splitlines()
    assert clip[-1] == "             see: notebooks/26_symptoms.ipynb#clipped-alone"
    assert lines[-3:] == [
        "check             the loss",
        "looked at         1 optimizer, 2 losses",
        "not looked at     evaluation",
    ]
    assert max(map(len, lines)) <= 88


@pytest.mark.parametrize(
    "report, words",
    [
        (
            Report([], world_size=1, steps=1),
            "audit: nothing was compared in 1 step on 1 rank (float64)",
        ),
        (
            Report([], ["x"], (), (), 2, 3),
            "audit: no finding, 1 to check, in 3 steps on 2 ranks (float64)",
        ),
        (
            Report([finding("hang", "x")], (), (), (), 2, 3),
            "audit: 1 finding in 3 steps on 2 ranks (float64)",
        ),
    ],
)
def test_the_first_line_says_how_it_stands(report, words):
    assert str(report).splitlines()[0] == words


def test_every_code_has_a_cause_and_a_repair():
    assert all(cause and repair for cause, repair in WORDS.values())


def test_lists_are_cut():
    assert few(["a", "b"]) == "a, b"
    assert few([*"abcdefg"]) == "a, b, c, d, e and 2 more"
    assert numbers([1, 1e-17, 0.25]) == "1, 0, 0.25"
    assert numbers(range(8)) == "0, 1, 2, 3, 4, 5, ..."


def test_a_finding_alone_prints_as_it_does_in_a_report():
    found = finding("sum", "2 times", step=0, place="step at train.py, line 3")
    cause, repair = WORDS["sum"]
    assert " ".join(str(found).split()) == (
        "sum 2 times (since step 1; step at train.py, line 3) "
        f"cause: {cause} repair: {repair} "
        "see: notebooks/26_symptoms.ipynb#wrong-factor"
    )
    assert str(found) in str(Report([found]))


def test_there_are_few_codes_and_few_fields_and_every_code_is_given_by_some_rule():
    advice = "a new case changes a rule of a code that there is, or is not looked at"
    assert len(WORDS) <= 22, advice
    assert max(len(dataclasses.fields(kind)) for kind in (Run, Update)) <= 20
    source = "".join(
        path.read_text()
        for path in Path(manual_dp.audit.__file__).parent.glob("*.py")
        if path.name != "report.py"
    )
    assert [code for code in WORDS if f'"{code}"' not in source] == []


def test_a_number_that_rounds_to_nothing_has_no_sign():
    assert numbers([-1e-17, 0.5, 1e-17]) == "0, 0.5, 0"
