"""Problem set 5 gives a point for a clue, and one for a repair."""

import pytest

from course.school.checks import Wrong, check
from tests.support.school import TEMPLATES, define, filled

NAME = "ps5/rebinding"
CLUE, REPAIR = {"CLUE": '"replicas", k - 1'}, {"WRITE": "data[i] = total.clone()"}


def checked(capsys, changes):
    """Return the points for an answer, and the lines that the check prints."""
    answers = define(NAME, filled(NAME, TEMPLATES[NAME][0], changes))
    return check(NAME, *answers), capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "changes, right, wrong, told",
    [
        (CLUE, "repair", "clue", "perhaps the row is right; the number in the chart"),
        (REPAIR, "clue", "repair", "perhaps the list holds the sums"),
        ({"SUM": "raise_()"}, "clue", "repair", "NameError: name 'raise_' is not"),
        (
            {"CLUE": "blank(k)\n\ndef blank(k): raise NotImplementedError"},
            "repair",
            "clue",
            "It is not written",
        ),
    ],
    ids=["wrong number", "wrong repair", "an error", "blank"],
)
def test_one_of_two_is_worth_a_point(changes, right, wrong, told, capsys):
    points, lines = checked(capsys, changes)
    assert points == 1
    assert lines[:2] == [
        f"{NAME} is right in parts.",
        f"1 of 2 points: the {right} is right, the {wrong} is not yet.",
    ]
    assert lines[-1].startswith(told)


def test_an_error_is_told_with_the_line_of_the_learners(capsys):
    _, lines = checked(capsys, {"SUM": "raise_()"})
    assert "    total = raise_()" in lines


@pytest.mark.parametrize("other", [{}, {"SUM": "raise_()"}], ids=["wrong", "an error"])
def test_two_wrong_ones_are_worth_nothing_and_the_clue_is_told(other, capsys):
    with pytest.raises(Wrong, match="the row is right"):
        checked(capsys, {**REPAIR, **CLUE, **other})


def test_of_a_blank_clue_and_a_wrong_repair_the_repair_is_told(capsys):
    blank = {"CLUE": "blank(k)\n\ndef blank(k): raise NotImplementedError"}
    with pytest.raises(Wrong, match="the list holds the sums"):
        checked(capsys, {**REPAIR, **blank})
