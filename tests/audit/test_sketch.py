"""A sketch is linear and finds the numbers that make one tensor of others."""

import itertools

import pytest
import torch

from manual_dp.audit.sketch import SIZE, Sketch, bit_hashes, mixture, row_hashes

SHAPES = [(), (1,), (5,), (4, 3), (0,), (300, 500)]


def tensors(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in SHAPES
    ]


def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches():
    a, b = tensors(0), tensors(1)
    sketch = Sketch(a)
    both = sketch([2 * x - 3 * y for x, y in zip(a, b)])
    assert both.shape == (len(SHAPES), SIZE)
    assert torch.allclose(both, 2 * sketch(a) - 3 * sketch(b), rtol=1e-12, atol=1e-9)


def test_two_sketches_of_the_same_shapes_are_the_same_function():
    assert torch.equal(Sketch(tensors(0))(tensors(2)), Sketch(tensors(1))(tensors(2)))


def test_none_counts_as_zero_and_sparse_and_complex_are_taken():
    dense = torch.eye(4)
    sketch = Sketch([dense])
    assert torch.equal(sketch([None]), torch.zeros(1, SIZE, dtype=torch.float64))
    assert torch.equal(sketch([dense.to_sparse()]), sketch([dense]))
    number = torch.tensor([1 + 2j])
    assert Sketch([number])([number]).abs().sum() > 0


@pytest.mark.parametrize("c", [(1.0, 0.0), (0.5, 0.5), (-2.0, 7.0)])
def test_a_mixture_gives_the_numbers_back(c):
    a, b = Sketch(tensors(0))(tensors(0)), Sketch(tensors(0))(tensors(1))
    assert mixture(c[0] * a + c[1] * b, [a, b]) == pytest.approx(c, abs=1e-9)


def test_what_is_no_mixture_gives_none():
    a, b, other = (Sketch(tensors(0))(tensors(seed)) for seed in range(3))
    assert mixture(other, [a, b]) is None
    assert mixture(a, [0 * a]) is None
    assert mixture(a * float("nan"), [a]) is None
    assert mixture(a, [0 * b, a]) == pytest.approx([0, 1])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.int16,
        torch.uint8,
        torch.bool,
    ],
)
def test_another_bit_is_another_hash(dtype):
    generator = torch.Generator().manual_seed(0)
    base = (torch.rand(5000, generator=generator) * 100).to(dtype)
    hashes = bit_hashes([base, base.clone()])
    assert hashes[0] == hashes[1]
    for i in (0, 1, 1021, 4999):
        other = base.clone()
        other[i] = ~other[i] if dtype == torch.bool else other[i] + 1
        assert bit_hashes([other])[0] != hashes[0]


def test_a_hash_depends_on_the_order_and_on_no_stride():
    x = torch.arange(12.0).reshape(3, 4)
    assert bit_hashes([x])[0] != bit_hashes([x.flip(0)])[0]
    assert bit_hashes([x.T.contiguous().T])[0] == bit_hashes([x])[0]
    assert bit_hashes([]) == []


def test_equal_rows_have_equal_hashes_and_no_others():
    x = torch.tensor([[1.0, 2], [2, 1], [1, 2], [0, 0]])
    hashes = row_hashes(x)
    alike = [
        (i, j) for i, j in itertools.combinations(range(4), 2) if hashes[i] == hashes[j]
    ]
    assert alike == [(0, 2)]
    assert row_hashes(torch.zeros(3, 0)) == [0, 0, 0]
