"""Numbers as they travel: drawn, made into tensors, and made into lists again."""

import json
import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from manual_dp.school.tools.plain import (
    batches,
    expect,
    forms,
    listed,
    memory,
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
    assert plainly(object()) == "a object"
    assert plainly({"a": [1, {2}]}) == {"a": [1, "a set"]}


def test_numbers_of_other_kinds_become_pythons_own():
    kinds = [np.int64(3), np.float32(0.5), np.bool_(True), Fraction(1, 4), Decimal("0.5"),
             np.array([1, 2]), torch.tensor(3)]
    plain = [3, 0.5, True, 0.25, 0.5, [1, 2], 3]
    assert numbers(kinds) == plain
    assert list(map(type, numbers(kinds))) == list(map(type, plain))


def test_dtype_and_shape_are_told_and_what_is_no_tensor():
    assert forms([torch.ones(0, 2), torch.tensor(1), [3]]) == [
        "torch.float32 of shape (0, 2)", "torch.int64 of shape ()", "a list"]


@pytest.mark.parametrize("change, seen", [
    (lambda t: t.add_(1), [2.0]), (lambda t: setattr(t, "data", t + 1), [1.0])])
def test_the_memory_of_a_tensor_shows_what_was_written_into_it(change, seen):
    tensor = torch.ones(1)
    (look,) = memory([tensor])
    change(tensor)
    assert (tensor.tolist(), look.tolist()) == ([2.0], seen)


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
