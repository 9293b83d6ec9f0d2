"""Minibatches hand out every example once an epoch; the digits are scikit-learn's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manual_dp import load_data
from manual_dp.data import Batches


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def order(batches):
    return torch.cat([X for X, _ in batches]).tolist()


# Batches


@given(rows=st.integers(1, 20), batch_size=st.integers(1, 9), shuffled=st.booleans())
def test_every_example_comes_once_an_epoch(rows, batch_size, shuffled):
    X, y = torch.arange(rows), torch.arange(rows) * 10
    batches = Batches(X, y, batch_size, seeded() if shuffled else None)
    full, rest = divmod(rows, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    assert len(batches) == len(sizes)
    for _ in range(2):
        assert [len(X) for X, _ in batches] == sizes
        assert sorted(order(batches)) == list(range(rows))
        assert all(torch.equal(y, X * 10) for X, y in batches)
        assert shuffled or order(batches) == list(range(rows))


def test_every_epoch_has_a_new_order_that_depends_on_the_generator_alone():
    first, again, other = (
        Batches(torch.arange(50), torch.arange(50), 4, seeded(seed))
        for seed in (0, 0, 1)
    )
    expected = order(first)
    torch.rand(3)  # somebody else draws
    assert order(again) == expected != order(other)
    assert order(again) != expected != list(range(50))


@pytest.mark.parametrize(
    "y, batch_size, message",
    [
        (torch.zeros(3), 2, "X has 4 rows but y has 3"),
        (torch.zeros(4), 0, "batch_size must be an integer >= 1, got 0"),
        (torch.zeros(4), 2.0, r"batch_size must be an integer >= 1, got 2\.0"),
    ],
)
def test_refuses_to_make_minibatches(y, batch_size, message):
    with pytest.raises(ValueError, match=message):
        Batches(torch.zeros(4), y, batch_size)


# the digits


def test_digits_are_scikit_learns_at_three_times_the_size():
    # some seconds to import scikit-learn: only it has the digits
    from sklearn.datasets import load_digits

    digits = load_digits()
    train_iter, test_iter = load_data("digits", batch_size=64, dtype=torch.float64)
    fifth = torch.arange(1797) % 5 == 4  # for testing: 4, 9, 14, ...
    for batches, rows in ((train_iter, ~fifth), (test_iter, fifth)):
        assert batches.y.tolist() == digits.target[rows].tolist()
        assert batches.X.shape == (len(batches.y), 1, 28, 28)
        assert batches.X.dtype == torch.float64 and batches.y.dtype == torch.int64
        assert batches.X.min() == 0 and batches.X.max() == 1
        assert batches.batch_size == 64
        X, images = batches.X.squeeze(1) * 16, digits.images[rows]
        for row in range(3):
            for column in range(3):
                part = X[:, 2 + row : 26 : 3, 2 + column : 26 : 3]
                assert part.tolist() == images.tolist()
        assert X.sum() == 9 * images.sum()  # and nothing on the margins


def test_digits_in_float32_and_minibatches_of_256_are_the_default():
    for batches, named in zip(load_data(), load_data("digits", dtype=torch.float64)):
        assert batches.batch_size == 256 and batches.X.dtype == torch.float32
        assert torch.equal(batches.X, named.X.float())
        assert torch.equal(batches.y, named.y)


def test_only_the_training_set_is_shuffled_by_its_seed():
    first, other = (load_data("digits", 300, seed=seed) for seed in (0, 1))
    torch.rand(3)
    again = load_data("digits", 300)
    labels = [
        [y.tolist() for _, y in iterator] for iterator in (first[0], again[0], other[0])
    ]
    assert labels[0] == labels[1] != labels[2]
    assert torch.equal(torch.cat([y for _, y in first[1]]), other[1].y)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("manual_dp.data.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'manual_dp\[course\]'"):
        load_data("digits")


def test_refuses_a_name_and_lists_those_there_are():
    with pytest.raises(
        ValueError, match="data must be one of digits, fashion-mnist, got 'mnist'"
    ):
        load_data("mnist")
