"""Any nest of tensors is handed over, taken apart and known again row by row."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from manual_dp.audit.batch import (
    Minibatch,
    arguments,
    by_numbers,
    changed,
    doubles,
    tensors,
)

Pair = namedtuple("Pair", "X y")


@dataclass
class Batch:
    """Have tensors in two depths."""

    X: torch.Tensor
    more: dict


X = torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([2, 0, 1, 2, 0, 1])
NESTS = {"pair": (X, Y), "three": [X, X + 1, Y], "dict": {"x": X, "y": Y}, "one": X,
         "dataclass": Batch(X, {"y": Y}), "namedtuple": Pair(X, Y),
         "mixed": (3, {"x": (X, "a word")}, None)}


@pytest.mark.parametrize("name", NESTS)
def test_all_tensors_of_a_nest_are_found_and_changed(name):
    nest = NESTS[name]
    found = tensors(nest)
    assert any(t is X for t in found) and len(found) in (1, 2, 3)
    other = changed(nest, lambda t: t + 1)
    assert type(other) is type(nest)
    assert all(torch.equal(t, was + 1) for t, was in zip(tensors(other), found))


def test_as_many_rows_are_looked_for_as_there_should_be():
    images = [torch.rand(3, 2, 2) for _ in range(4)]
    boxes = [{"box": torch.rand(n, 4), "label": torch.rand(n)} for n in (3, 1, 3, 4)]
    assert Minibatch((images, boxes)).size == 3  # the images' channels
    found = Minibatch((images, boxes), 4)
    assert (found.size, found.rows([torch.stack(images[::-1])])) == (4, [3, 2, 1, 0])
    padded = torch.rand(4, 3, 8, 8), [{"box": torch.rand(n, 4), "area": torch.rand(n)}
                                      for n in (2, 3, 3, 3)]
    assert Minibatch(padded).size == 3
    assert Minibatch(padded, 4).rows([padded[0][1:3]]) == [1, 2]
    assert Minibatch(X, 4).size == 6  # as it is, where nothing has so many


def test_floats_become_float64_and_whole_numbers_stay():
    found = doubles({"x": X.float(), "y": Y, "mask": Y > 0})
    assert [t.dtype for t in tensors(found)] == [torch.float64, torch.int64, torch.bool]


# what step is called with

def of_two(model, batch):
    return batch


def of_three(model, X, y):
    return X, y


def of_any(*args):
    return args


def of_default(model, X, y=None, scale=1):
    return X, y


@pytest.mark.parametrize("step, batch, passed", [
    (of_two, (X, Y), 1), (of_three, (X, Y), 2), (of_any, (X, Y), 2),
    (of_default, (X, Y), 2), (of_default, (X,), 1), (of_three, [X, Y], 2),
    (of_two, {"x": X, "y": Y}, 1), (of_two, X, 1), (of_two, Pair(X, Y), 1),
    (of_two, (X, X, Y), 1), (of_any, None, 0),
    (of_three, (X, X, Y), 3)])  # fits neither way: its error says what was handed over
def test_a_tuple_is_several_arguments_where_the_step_takes_them(step, batch, passed):
    first, *rest = arguments(step, ["model"], batch)
    assert first == "model" and len(rest) == passed


def test_a_step_without_a_signature_gets_several():
    assert len(arguments(max, ["model"], (X, Y))) == 3


# rows

@pytest.mark.parametrize("name", ["pair", "three", "dict", "one", "dataclass"])
@pytest.mark.parametrize("rows", [[0, 2, 4], [5], [1, 1, 3], [3, 0]])
def test_the_rows_of_a_part_are_known(name, rows):
    batch = Minibatch(NESTS[name])
    assert batch and batch.size == 6
    assert batch.rows([X[rows]]) == rows
    assert batch.rows([X[rows].view(-1, 5, 1)]) == rows  # in another shape
    assert batch.rows([X[rows].float().double()]) == rows  # as a step may round


def test_a_view_is_known_by_its_place():
    batch = Minibatch((torch.ones(6, 5, dtype=torch.float64), Y))
    whole = batch.nest[0]
    assert batch.rows([whole[1::2]]) == [1, 3, 5]
    assert batch.rows([whole[2:4]]) == [2, 3]


def test_what_is_not_rows_of_it_is_not_known():
    batch = Minibatch((X, Y))
    assert batch.rows([X + 1]) is None and batch.rows([X[:, :4].contiguous()]) is None
    assert batch.rows([]) is None
    assert batch.rows([X + 1, X[[4]]]) == [4]  # some other of the inputs


def test_equal_rows_have_one_place_and_are_counted():
    twice = X.clone()
    twice[4] = twice[1]
    batch = Minibatch((twice, Y.new_zeros(6)))
    assert batch.rows([twice[[4, 2]]]) == [1, 2]
    assert batch.copies == {1: 2, 4: 2}
    assert Minibatch((X, Y)).copies == {}


def test_whole_numbers_of_many_columns_are_rows_as_in_a_language_model():
    words = torch.arange(24).view(6, 4)
    assert Minibatch(words).rows([words[[3, 5], :]]) == [3, 5]
    assert Minibatch((words, words + 1)).rows([words[[2]]]) == [2]


def test_the_targets_of_a_pair_are_y_and_of_others_all_that_they_have():
    assert torch.equal(Minibatch((X, Y)).of([4, 2]), Y[[4, 2]])
    other = Minibatch({"x": X, "y": Y, "n": 6}).of([4])
    assert other["n"] == 6 and other["y"].tolist() == [0] and other["x"].shape == (1, 5)


def test_rows_of_whole_numbers_alone_are_known_by_several_together():
    users, films = torch.arange(12) % 4, torch.arange(12) // 4
    nobody = Minibatch()
    assert nobody.seen([users]) is None  # too many have the same one
    rows = nobody.seen([users, films])
    assert len(set(rows)) == 12 and rows[2:] == nobody.seen([users[2:], films[2:]])
    assert rows != nobody.seen([films, users])
    two, three = by_numbers([users, films, torch.ones(12), users[:2], users])
    assert two == rows and len(three) == 12 and three != two
    assert nobody.seen([users, films, torch.ones(12)]) == nobody.seen([torch.ones(12)])


def test_few_different_rows_of_whole_numbers_are_not_known():
    nobody, few = Minibatch(), torch.arange(8)
    assert nobody.seen([few[:7], few[:7]]) is None and nobody.seen([few, few])
    assert nobody.seen([few.repeat(2), few.repeat(2)])
    assert nobody.seen([few.repeat(3), few.repeat(3)]) is None


def test_no_minibatch_has_no_rows_and_another_has_another_sum():
    assert not Minibatch() and Minibatch().size == 0
    assert Minibatch((X, Y)).sum() == Minibatch((X.flip(0), Y)).sum()
    assert Minibatch((X, Y)).sum() != Minibatch((X + 1, Y)).sum()
