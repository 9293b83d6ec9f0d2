"""Sketches are linear, hashes see every bit, rows are told apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manual_dp.audit.fingerprint import SIZE, Sketch, bit_hash, row_hashes

SHAPES = [(), (1,), (5,), (4, 3), (0,), (SIZE,), (SIZE + 1,), (1021,), (2050,), (33, 64)]


def draw(shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype)


def test_a_sketch_of_a_sum_is_the_sum_of_sketches():
    one, two = ([draw(shape, seed) for shape in SHAPES] for seed in (0, 1))
    sketch = Sketch(one)
    expected = 3 * sketch(one) - sketch(two)
    found = sketch([3 * a - b for a, b in zip(one, two)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_small_tensor_is_its_own_sketch_but_for_weights():
    tensor = draw((4, 3))
    row = Sketch([tensor])([tensor])[0]
    assert (row != 0).sum() == 12
    assert Sketch([tensor])([None]).tolist() == [[0.0] * SIZE]


def test_a_sketch_tells_the_sign_of_an_imaginary_part():
    one, other = torch.tensor([1 + 2j, 3j]), torch.tensor([1 - 2j, 3j])
    apart = Sketch([one]).row(one) - Sketch([other]).row(other)
    assert (apart != 0).sum() == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16,
                                   torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_place_counts(dtype, shape):
    tensor = (draw(shape) > 0.5).to(dtype)
    flat, before = tensor.view(-1), int(bit_hash(tensor))
    assert int(bit_hash(tensor.clone())) == before
    for i in {0, len(flat) // 2, len(flat) - 1} if len(flat) else ():
        other = flat.clone()
        other[i] = 1 - other[i].to(torch.int64)
        assert int(bit_hash(other)) != before


@given(st.integers(2, 3000), st.integers(0, 2999), st.integers(0, 2999))
def test_two_numbers_that_change_places_change_the_hash(n, i, j):
    tensor, i, j = draw(n), i % n, j % n
    other = tensor.clone()
    other[i], other[j] = tensor[j], tensor[i]
    # i and j in one column of 1021 are the exception: a sum knows no order
    alike = i == j or (i - j) % 1021 == 0
    assert alike or int(bit_hash(other)) != int(bit_hash(tensor))


def test_a_view_has_the_hash_of_its_copy():
    whole = draw(41, dtype=torch.float32)
    for view in (whole[1:], whole[1:7], whole[::2], whole.view(1, 41).T):
        assert int(bit_hash(view)) == int(bit_hash(view.clone()))


def test_rows_have_one_hash_each_whatever_their_shape():
    X = draw((5, 2, 3))
    assert len(set(row_hashes(X))) == 5
    assert row_hashes(X[[3, 1]]) == [row_hashes(X)[3], row_hashes(X)[1]]
    assert row_hashes(X.flatten(1)) == row_hashes(X)
    assert row_hashes(X[:0]) == [] and row_hashes(draw((3, 0))) == [0, 0, 0]
    assert row_hashes(draw(3)) != row_hashes(draw(3, seed=1))
