"""What counts as the numbers wanted, and what a learner is told when it is not."""

import math

import pytest
import torch

from manual_dp.school.exercise import (
    SETS,
    WAITED,
    Exercise,
    about,
    close,
    differ,
    each,
    exercises,
    failed,
    find,
    shorten,
    times,
    unequal,
)

ONE = torch.tensor([1.0, 2.0])


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


# close

@pytest.mark.parametrize("got, wanted", [
    (1.0, 1.0), (1, 1.0), (1.0, 1), (0, 0.0), (-0.0, 0), (1 + 5e-10, 1.0),
    (1e12 + 1, 1e12), (1e-12, 0.0), ("a", "a"), (True, True), (None, None), ([], []),
    ([1.0, [2.0, []]], [1, [2, []]]), ((1, 2), [1, 2]), ([1, 2], (1, 2)),
    ({"a": [1.0], "b": "x"}, {"b": "x", "a": [1]}), (10**15, 10**15)])
def test_the_numbers_wanted_are_close(got, wanted):
    assert close(got, wanted) is True


@pytest.mark.parametrize("got, wanted", [
    (1 + 3e-9, 1.0), (1 - 3e-9, 1.0), (-1.0, 1.0), (2e-9, 0.0),
    (math.nan, 1.0), (math.nan, math.nan), (1.0, math.nan),
    (math.inf, 1.0), (-math.inf, 1.0), (math.inf, math.inf), (1.0, math.inf),
    (-math.inf, math.inf), (10**400, 1.0), (-10**400, 1.0), (10**400, math.inf),
    (True, 1), (False, 0), (1, True), (0, False), (1.0, True), ("1", 1), (1, "1"),
    (None, 0), (0, None), ("", None), (None, ""), (False, None), ("True", True),
    ([], None), ([], 0), (0, []), ([1.0], 1.0), (1.0, [1.0]), ("", []), ({}, []),
    ([], {}), ([[1.0]], [1.0]), ([1.0], [[1.0]]), ([1.0], [1.0, 2.0]),
    ([1.0, 2.0], [1.0]), ([2.0, 1.0], [1.0, 2.0]), ([[], []], [[]]), ("ab", ["a", "b"]),
    ({"0": 1.0}, [1.0]), ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1}),
    ({"b": 1}, {"a": 1}), ({"a": 2}, {"a": 1}), ([math.nan], [1.0]), ([None], [1.0]),
    (nested(900), 1.0), (nested(900), [[1.0]]), (1j, 1.0), (object(), 1.0)])
def test_anything_else_is_not_close(got, wanted):
    assert close(got, wanted) is False


def test_the_tolerance_is_relative_above_one_and_absolute_below():
    assert close(1009, 1000, 0.01) and not close(1011, 1000, 0.01)
    assert close(0.019, 0.01, 0.01) and not close(0.021, 0.01, 0.01)


# differ

def test_the_right_numbers_need_no_message():
    assert differ("one tensor", [1.0, 2.0], [1, 2], [("never said", True)]) is None


def test_a_message_says_given_got_and_wanted():
    assert differ("x = 1", [1.0], [2 / 3]) == ("given   x = 1\n"
                                               "got     [1]\n"
                                               "wanted  [0.66667]")


@pytest.mark.parametrize("hints, said", [
    ([], None),
    ([("no", False)], None),
    ([("no", 9.0)], None),
    ([("no", [])], None),
    ([("no", None)], None),
    ([("yes", True)], "yes"),
    ([("yes", 5.0)], "yes"),
    ([("first", 5.0), ("second", True)], "first"),
    ([("first", True), ("second", 5.0)], "first"),
    ([("no", 4.0), ("no", False), ("yes", 5.0), ("late", True)], "yes"),
    ([("no", 0.0), ("no", 1.0)], None)])
def test_the_first_hint_that_fits_is_said_and_no_other(hints, said):
    lines = differ("x", 5.0, 6.0, hints).splitlines()
    assert lines[3:] == ([f"perhaps {said}"] if said else [])


def test_a_hint_that_does_not_apply_is_not_taken_for_the_number_it_looks_like():
    assert "perhaps" not in differ("x", False, True, [("no", False)])
    assert "perhaps no" in differ("x", None, True, [("no", None)])


def test_hints_are_held_to_the_same_tolerance():
    assert "perhaps" in differ("x", 5.2, 9.0, [("near", 5.0)], tolerance=0.1)
    assert "perhaps" not in differ("x", 5.2, 9.0, [("near", 5.0)])


def test_hints_can_be_held_to_more_than_is_shown():
    hints = [("the part", [1.0]), ("the whole", [1.0, 5.0])]
    assert differ("x", [1.0], [2.0], hints, whole=[1.0, 5.0]).endswith("perhaps the whole")


# about

def test_tensors_are_compared_with_lists_also_in_hints():
    say = about("two ranks")
    assert say("the sum", [[1.0, 2.0]] * 2, [ONE] * 2) is None
    assert say("the sum", [2.0, 4.0], ONE, [("halved", ONE / 2), ("doubled", 2 * ONE)]
               ) == ("given   two ranks; the sum\ngot     [2, 4]\nwanted  [1, 2]\n"
                     "perhaps doubled")


def test_a_hint_can_be_a_truth_value():
    said = about("a")("b", 1, 2, [("not this", False), ("this", True)])
    assert said.endswith("perhaps this")


# ranks

@pytest.mark.parametrize("kind, error, said", [
    ("raised", "rank 1 raised KeyError:\n 3", "one"),
    ("raised", "rank 1 raised ValueError: 3", None),
    ("raised", "rank 1 raised RuntimeError: [gloo] 3", "they waited"),
    ("hung", "time was up", "they waited"), ("left", "rank 0 waited", "they waited")])
def test_ranks_that_came_to_no_results_are_told_their_error_and_a_hint(kind, error, said):
    got = {"error": error, "kind": kind, "place": " (in ring, line 3)"}
    message = failed("2 ranks", got, "a sum", [
        ("one", "KeyError: 3"), ("none", False), ("they waited", WAITED)])
    assert message.splitlines() == [
        "given   2 ranks", f"got     no result: {' '.join(error.split())} (in ring, line 3)",
        "wanted  a sum", *([f"perhaps {said}"] if said else [])]


def test_ranks_that_came_to_results_have_not_failed():
    assert failed("2 ranks", {"ranks": [0, 1]}, "a sum", [("one", "")]) is None


def test_a_rank_that_differs_from_the_first_is_noticed():
    assert not unequal([[1.0], [1.0]]) and not unequal([[1.0]])
    assert unequal([[1.0], [1.0], [1.1]]) and unequal([[1.0], None])


def test_what_every_rank_returned_comes_in_the_order_of_ranks():
    assert each([{"a": 1, "b": 2}, {"a": 3}], "a") == [1, 3]


# times

@pytest.mark.parametrize("got, wanted, factor", [
    ([2.0, -4.0], [1.0, -2.0], 2.0), ([[0.5], [[1.0]]], [[1], [[2]]], 0.5),
    ([0.0, 0.0], [1.0, 2.0], 0.0), ([-1.0], [1.0], -1.0), (3.0, 2.0, 1.5)])
def test_the_factor_between_numbers_is_found(got, wanted, factor):
    assert times(got, wanted) == pytest.approx(factor)


@pytest.mark.parametrize("got, wanted", [
    ([1.0, 2.0], [1.0, 3.0]), ([1.0], [0.0]), ([], []), ([1.0, math.nan], [1.0, 1.0]),
    ([1.0, 2.0, 3.0], [1.0, 2.0])])
def test_numbers_that_are_no_multiple_have_no_factor(got, wanted):
    assert math.isnan(times(got, wanted))


# shorten

@pytest.mark.parametrize("value, text", [
    (1.23456789, "1.2346"), (1e-7, "1e-07"), (math.nan, "nan"), (3, "3"), (None, "None"),
    (True, "True"), ("a b", "a b"), ([], "[]"), ((1.0, [2.5]), "[1, [2.5]]"),
    ({"a": [0.1], "b": None}, "a: [0.1], b: None"),
    (list(range(41)), f"[{', '.join(map(str, range(40)))}, ...]"),
    (list(range(40)), f"[{', '.join(map(str, range(40)))}]"),
    (nested(3), "[[[[]]]]")])
def test_values_are_written_short(value, text):
    assert shorten(value) == text


@pytest.mark.parametrize("value", ["x" * 10**6, list(range(1000, 1040)) * 9,
                                   {str(i): i for i in range(10**4)}, [[0.1] * 40] * 40,
                                   nested(900), [nested(900)] * 40])
def test_a_text_is_never_longer_than_its_width(value):
    assert len(shorten(value)) <= 300 and len(shorten(value, 20)) <= 20


def test_what_was_cut_shows_that_it_was():
    assert shorten("x" * 11, 10) == "xxxxxx ..." and shorten("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize("depth", [12, 900])
def test_lists_in_lists_are_written_to_ten_levels(depth):
    assert shorten(nested(depth)) == "[" * 11 + "..." + "]" * 11
    assert shorten({"a": nested(depth)}) == "a: " + "[" * 10 + "..." + "]" * 10


# exercises, find

def test_an_exercise_is_found_by_its_name():
    found = exercises("ps1")
    assert list(found) == [exercise.name for exercise in found.values()]
    assert find("ps1/allreduce") is found["ps1/allreduce"]
    assert isinstance(find("ps1/allreduce"), Exercise)


@pytest.mark.parametrize("name", ["ps99", "", "PS1", "ps1/allreduce", "os"])
def test_an_unknown_problem_set_is_refused(name):
    with pytest.raises(ValueError, match=f"no problem set is called '{name}'; "
                                         f"there are {', '.join(SETS)}$"):
        exercises(name)


@pytest.mark.parametrize("name", ["ps1", "ps1/", "ps1/fly", "ps1/allreduce/x"])
def test_an_unknown_exercise_is_refused_with_the_names_there_are(name):
    with pytest.raises(ValueError, match=f"no exercise is called '{name}'; there are "
                                         ".*ps1/allreduce"):
        find(name)


@pytest.mark.parametrize("name", ["", "fly", "ps99/allreduce", "os/path"])
def test_an_exercise_of_no_problem_set_is_refused(name):
    with pytest.raises(ValueError, match="no problem set is called"):
        find(name)


@pytest.mark.parametrize("got, wanted, texts", [
    ([0.1 + 1e-7], [0.1], ("[0.100000100]", "[0.1]")),
    ([1 + 1e-12], [1.0], None), ("1", 1, ("'1'", "1")),
    ([1.0] * 99 + [2.0], [1.0] * 100, ("at [99] 2.0", "at [99] 1.0")),
    ({"a": [1, "2"]}, {"a": [1, 2]}, ("at ['a'][1] '2'", "at ['a'][1] 2"))])
def test_what_would_print_alike_is_told_apart(got, wanted, texts):
    message = differ("x", got, wanted, tolerance=1e-15)
    lines = message.splitlines()
    assert lines[1][8:] != lines[2][8:]
    if texts:
        assert texts[0].rstrip("0]") in lines[1] and texts[1] in lines[2]


def test_what_was_rounded_is_guessed_last():
    rounded = torch.tensor([1 / 3]).tolist()
    assert "rounded, perhaps to float32" in differ("x", rounded, [1 / 3])
    assert differ("x", rounded, [1 / 3], [("mine", True)]).endswith("perhaps mine")
