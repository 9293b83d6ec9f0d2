"""Numbers as they travel: drawn, made into tensors, and made into lists again."""

import json
import random

import pytest
import torch

from manual_dp.school.tools.plain import (
    batches,
    expect,
    listed,
    numbers,
    plainly,
    random_numbers,
)


def test_random_numbers_have_the_shape_and_no_two_are_the_same():
    lists = random_numbers(random.Random(0), 3, 4, 2)
    flat = [x for rows in lists for row in rows for x in row]
    assert [len(lists), *{len(rows) for rows in lists}] == [3, 4]
    assert len(set(flat)) == 24 and all(-1 <= x <= 1 for x in flat)
    assert min(flat) < 0 < max(flat)


def test_random_numbers_without_a_shape_are_one_number():
    assert isinstance(random_numbers(random.Random(0)), float)
    assert random_numbers(random.Random(0), 0) == []
    assert random_numbers(random.Random(0), 2, 0) == [[], []]


def test_random_numbers_come_from_the_generator_alone():
    assert random_numbers(random.Random(7), 5) == random_numbers(random.Random(7), 5)
    assert random_numbers(random.Random(7), 5) != random_numbers(random.Random(8), 5)


def test_tensors_in_lists_and_dicts_become_lists():
    value = {"a": torch.ones(2, requires_grad=True), 1: [torch.tensor(3), (None, "x")]}
    assert numbers(value) == {"a": [1.0, 1.0], "1": [3, [None, "x"]]}
    assert json.loads(json.dumps(numbers(value))) == numbers(value)


def test_what_json_cannot_hold_is_told_by_its_type():
    assert plainly([torch.ones(2), (3, None)]) == [[1.0, 1.0], [3, None]]
    assert plainly(object()) == "a object" and plainly([len]) == "a list"


def test_rows_are_floats_and_labels_are_whole_numbers():
    (X, y), = batches([([[1, 2]], [3])])
    assert (X.dtype, y.dtype) == (torch.float64, torch.int64)
    assert (X.tolist(), y.tolist()) == ([[1.0, 2.0]], [3])


def test_one_thing_is_listed_as_many_are():
    assert listed([1, 2]) == [1, 2] and listed((1,)) == (1,) and listed(1) == [1]


@pytest.mark.parametrize("value, error, message", [
    (torch.ones(2), TypeError, "f must return a list of tensors, got Tensor"),
    ([torch.ones(1), 2.0], TypeError, r"f returned a float at \[1\], not a tensor"),
    ([torch.ones(1)], ValueError, "f returned 1 tensors, not 2")])
def test_what_is_no_list_of_so_many_tensors_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        expect(value, 2, "f")
