"""Which answers `close` takes for right, and what `about` tells a learner else."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from course.school.checks import (
    ROUNDED,
    about,
    close,
    numbers,
    remember,
    shorten,
)

ONE = torch.tensor([1.0, 2.0])


def nested(depth):
    return [nested(depth - 1)] if depth else []


# close


@pytest.mark.parametrize(
    "got, wanted",
    [
        (1, 1.0),
        (1e12 + 1, 1e12),
        (1e-12, 0.0),
        ("a", "a"),
        (True, True),
        (None, None),
        ((1, 2), [1, 2]),
        ([1, [2, []]], (1, [2, []])),
        ({"a": [1.0], "b": "x"}, {"b": "x", "a": [1]}),
    ],
)
def test_the_numbers_wanted_are_close(got, wanted):
    assert close(got, wanted) is True


@pytest.mark.parametrize(
    "got, wanted",
    [
        (1 + 3e-9, 1.0),
        (1 - 3e-9, 1.0),
        (math.nan, 1.0),
        (math.inf, math.inf),
        (1.0, math.inf),
        (10**400, 1.0),
        (True, 1),
        (1, True),
        ("1", 1),
        (1, "1"),
        (None, 0),
        (0, None),
        ([], None),
        ("", []),
        ({}, []),
        ([], {}),
        ([1.0], [1.0, 2.0]),
        ([1.0, 2.0], [1.0]),
        ([2.0, 1.0], [1.0, 2.0]),
        ("ab", ["a", "b"]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 2}, {"a": 1}),
        (nested(900), [[1.0]]),
        (1j, 1.0),
    ],
)
def test_anything_else_is_not_close(got, wanted):
    assert close(got, wanted) is False


def test_the_tolerance_is_relative_above_one_and_absolute_below():
    assert close(1009, 1000, 0.01) and not close(1011, 1000, 0.01)
    assert close([0.019], [0.01], 0.01) and not close(0.021, 0.01, 0.01)


# about


def test_a_message_says_given_got_and_wanted():
    assert about("x = 1")("y", [1.0], [2 / 3]) == (
        "given   x = 1; y\ngot     [1]\nwanted  [0.66667]"
    )


@pytest.mark.parametrize(
    "hints, said",
    [
        ({}, None),
        ({"no": None}, None),
        ({"yes": torch.tensor(5.0)}, "yes"),
        ({"first": 5.0, "second": True}, "first"),
        (iter([("no", 4.0), ("no", False), ("yes", 5.0), ("late", True)]), "yes"),
    ],
)
def test_the_first_hint_that_fits_is_said_and_no_other(hints, said):
    lines = about("x")("y", 5.0, 6.0, hints).splitlines()
    assert lines[3:] == ([f"perhaps {said}"] if said else [])


@pytest.mark.parametrize(
    "got, wanted, said",
    [
        (None, 3.0, "this is None: was a return left out?"),
        ([1.0], [1.0, 2.0], "there are 1 of them; 2 are wanted"),
        ([[1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0]], "the numbers are right; how"),
        ([[1.0], [2.0]], [[1.0, 2.0], [3.0]], "some part has another number of"),
        ([3.0, -6.0, 0.0], [1.0, -2.0, 0.0], "these are 3 times the numbers"),
        (0.5, 1.5, "this is 0.3333 times the number that is wanted"),
        (-0.7, 0.7, "this is -1 times the number"),
        (0.9, 0.5, ""),
        ({"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}, "these are the numbers"),
        ({"b": 2.0, "a": 3.0}, {"a": 1.0, "b": 2.0}, "1 of 2 numbers are right"),
        ([1.0, 5.0, 4.0], [1.0, 5.0, 3.0], "2 of 3 numbers are right"),
        ([0.0, 0.0], [1.0, 2.0], ""),
        ([1.0, 2.0], [0.0, 0.0], ""),
        ([math.inf, 2.0], [1.0, 2.0], "1 of 2 numbers are right"),
        (["a"], ["b"], ""),
    ],
)
def test_how_numbers_differ_is_told_where_no_hint_fits(got, wanted, said):
    hint = about("x")("y", got, wanted, {"no": False}).partition("perhaps ")[2]
    assert hint.startswith(said) and bool(hint) == bool(said)
    mine = about("x")("y", got, wanted, {"mine": True}).endswith("perhaps mine")
    assert mine == (got is not None)


PARTS = {"the part": [1.0], "the whole": [1.0, 5.0]}
THIRD = torch.tensor([1 / 3])  # rounded to float32


@pytest.mark.parametrize(
    "got, wanted, hints, options, said",
    [
        (False, True, {"no": False}, {}, ""),
        (5.2, 9.0, {"near": 5.0}, {"tolerance": 0.1}, "near"),
        ([1.0], [2.0], PARTS, {"whole": [1.0, 5.0]}, "the whole"),
        (THIRD, [1 / 3], {}, {}, ROUNDED),
        (THIRD, [1 / 3], {"mine": THIRD, "any": True}, {}, "mine"),
        (THIRD, [1 / 3], {"any": True}, {}, ROUNDED),
    ],
)
def test_hints_are_held_to_what_was_got(got, wanted, hints, options, said):
    message = about("x")("y", got, wanted, hints, **options)
    assert message.partition("\nperhaps ")[2] == said


@pytest.mark.parametrize(
    "got, wanted, texts",
    [
        ([0.1 + 1e-7], [0.1], ("[0.100000100]", "[0.1]")),
        ([1 + 1e-12], [1.0], None),
        ("1", 1, ("'1'", "1")),
        ([1.0] * 99 + [2.0], [1.0] * 100, ("at [99:104] [2", "at [99:104] [1")),
        (
            [[0.0] * 99, [0.0] * 50 + [1.0] * 49],
            [[0.0] * 99] * 2,
            ("at [1][50:55] [1, 1, 1, 1, 1", "at [1][50:55] [0, 0, 0, 0, 0"),
        ),
        ([0.5] * 99, [0.5] * 98, ("99 of them: [0.5", "98 of them: [0.5")),
        ({"a": [1, "2"]}, {"a": [1, 2]}, ("at ['a'] [1, '2'", "at ['a'] [1, 2]")),
    ],
)
def test_what_would_print_alike_is_told_apart(got, wanted, texts):
    lines = about("x")("y", got, wanted, tolerance=1e-15).splitlines()
    assert lines[1][8:] != lines[2][8:]
    if texts:
        assert texts[0].rstrip("0]") in lines[1] and texts[1] in lines[2]


def test_a_number_that_only_rounding_changes_is_not_where_values_differ():
    got, wanted = [1 + 1e-12, *[0.0] * 99, 2.0], [1.0] + [0.0] * 100
    lines = about("x")("y", got, wanted).splitlines()
    assert lines[1:3] == ["got     at [100:105] [2]", "wanted  at [100:105] [0]"]


# remember


def held():
    torch.manual_seed(0)
    return {
        "X": torch.ones(2, 3),
        "replicas": [[torch.ones(2, requires_grad=True)], [torch.tensor(math.nan)]],
        "counts": {"a": [1, 2]},
        "net": torch.nn.Linear(2, 1),
    }


def test_what_is_as_it_was_is_compared_and_right():
    things = held()
    same = remember(**things)
    things["replicas"][0][0].grad = torch.ones(2)
    assert list(same(about("x"))) == [None] * 4


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("X", lambda X: X.add_(1), "work on a copy"),
        ("X", lambda X: X.requires_grad_(), "requires_grad was switched"),
        ("X", lambda X: X.resize_(3, 2), "work on a copy"),
        ("replicas", lambda r: r[0][0].data.mul_(1 + 1e-6), "work on a copy"),
        ("replicas", lambda r: r[0][0].requires_grad_(False), "requires_grad"),
        ("replicas", lambda r: r.pop(), "work on a copy"),
        ("counts", lambda c: c["a"].reverse(), "work on a copy"),
        ("net", lambda net: net.eval(), "work on a copy"),
        ("net", lambda net: net.bias.data.zero_(), "work on a copy"),
    ],
)
def test_what_an_answer_has_changed_is_told_by_its_name(name, change, said):
    things = held()
    same = remember(**things)
    change(things[name])
    messages = [message for message in same(about("x")) if message]
    assert len(messages) == 1 and f"x; {name}, after the call" in messages[0]
    assert said in messages[0].partition("perhaps ")[2]


# numbers


def test_tensors_in_lists_and_dicts_become_lists():
    value = {"a": torch.ones(2, requires_grad=True), 1: [torch.tensor(3), (None, "x")]}
    assert numbers(value) == {"a": [1.0, 1.0], "1": [3, [None, "x"]]}


@pytest.mark.parametrize(
    "value, plain",
    [
        (np.bool_(True), True),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        ([{2}], ["a set"]),
        (torch.tensor(1j), "a complex"),
    ],
)
def test_numbers_of_other_kinds_become_pythons_own(value, plain):
    assert numbers(value) == plain and type(numbers(value)) is type(plain)


# shorten


@pytest.mark.parametrize(
    "value, text",
    [
        (1e-7, "1e-07"),
        ((1.23456, [2.5, None]), "[1.2346, [2.5, None]]"),
        ({"a": ONE, "b": True}, "a: [1, 2], b: True"),
        (list(range(41)), f"[{', '.join(map(str, range(40)))}, ...]"),
        (list(range(40)), f"[{', '.join(map(str, range(40)))}]"),
        (nested(3), "[[[[]]]]"),
    ],
)
def test_values_are_written_short(value, text):
    assert shorten(value) == text


def test_a_text_is_never_longer_than_its_width():
    assert len(shorten([[0.1] * 40] * 40)) == 300
    assert shorten("x" * 11, 10) == "xxxxxx ..." and shorten("x" * 10, 10) == "x" * 10
