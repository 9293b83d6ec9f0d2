"""A script without DDP and without a word to the audit is watched all the same."""

import pytest

from manual_dp.audit import audit_script
from tests.support.stored import ROOT

SCRIPT = ROOT / "tests" / "support" / "scripts" / "by_hand.py"


def told(*words):
    """Return the codes of the report on the script, and its text in one line."""
    report = audit_script([SCRIPT, *words], timeout=100)
    return [f.code for f in report.findings], " ".join(str(report).split())


@pytest.mark.parametrize("words", [
    [], ["tried"], ["tried", "wrapped"], ["two"], ["parts"], ["around"]])
def test_a_right_script_is_watched_from_the_first_call(words):
    codes, text = told(*words)
    assert not codes and text.startswith("audit: 3 steps on 2 ranks"), text
    assert text.endswith("beside one device in float64: clean"), text


@pytest.mark.parametrize("words, code", [
    (["biases"], "not-synchronised"), (["alone"], "start-differs"),
    (["two", "biases"], "not-synchronised"), (["parts", "biases"], "not-synchronised"),
    (["tried", "alone"], "start-differs"), (["unsent"], "not-synchronised")])
def test_mistakes_are_found(words, code):
    codes, text = told(*words)
    assert codes[:1] == [code], text


def test_ranks_that_have_nothing_in_common_are_not_judged():
    with pytest.raises(RuntimeError, match="other weights, and share no gradients"):
        told("alone", "unsent")  # as the stages of a pipeline
    codes, _ = told("alone", "unsent", "watched")  # it was said what they are
    assert codes[:2] == ["start-differs", "not-synchronised"]
