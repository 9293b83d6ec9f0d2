"""Shards are torch's ceil chunks in order, with an empty one for every device left."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from manual_dp import scatter, split_batch


def rows(n, *shape):
    """Return n rows of distinct numbers."""
    return torch.arange(n * torch.Size(shape).numel()).view(n, *shape)


@given(n=st.integers(1, 64), k=st.integers(1, 9))
def test_shards_are_ceil_chunks_in_order_one_for_every_device(n, k):
    X, most = rows(n, 2), -(-n // k)
    shards, y_shards = split_batch(X, rows(n), ["cpu"] * k)
    assert isinstance(shards, tuple) and len(shards) == len(y_shards) == k
    assert [len(shard) for shard in shards] == [
        min(most, max(0, n - rank * most)) for rank in range(k)
    ]
    assert torch.equal(torch.cat(shards), X)
    assert all(map(torch.equal, shards, X.chunk(k)))
    for X_shard, y_shard in zip(shards, y_shards):
        assert torch.equal(X_shard[:, 0], 2 * y_shard)


def test_shards_that_stay_are_views():
    X = rows(5, 2)
    scatter(X, ["cpu", torch.device("cpu")])[1][0] = -1
    assert X[3].tolist() == [-1, -1]


# on GPUs, which this machine may not have


@pytest.mark.parametrize(
    "n, devices, calls, sizes",
    [
        (5, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], 1, [2, 2, 1, 0]),
        (3, ["cuda:0", "cuda:0"], 0, [2, 1]),
        (3, ["cuda:1", "cuda"], 0, [2, 1]),  # which GPU is meant is not said
        (3, ["cuda:0", "cpu:0"], 0, [2, 1]),
    ],
)
def test_distinct_gpus_and_no_others_go_through_torchs_own_scatter(
    monkeypatch, n, devices, calls, sizes
):
    called = []

    def torchs_scatter(X, devices):
        called.append(devices)
        return X.chunk(len(devices))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(nn.parallel, "scatter", torchs_scatter)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    shards = scatter(rows(n), devices)
    assert called == [devices] * calls
    assert [len(shard) for shard in shards] == sizes
    assert torch.equal(torch.cat(shards), rows(n))


# errors


@pytest.mark.parametrize(
    "X, y, error, message",
    [
        (rows(4), rows(3), ValueError, "X has 4 rows but y has 3"),
        (rows(3), rows(4), ValueError, "X has 3 rows but y has 4"),
        (
            rows(0, 1, 28, 28),
            rows(0),
            ValueError,
            r"X must have at least one row, got shape \(0, 1, 28, 28\)",
        ),
        (
            torch.tensor(1),
            torch.tensor(1),
            ValueError,
            r"at least one row, got shape \(\)",
        ),
        ([1, 2], rows(2), TypeError, "X must be a tensor, got list"),
        (rows(2), [1, 2], TypeError, "y must be a tensor, got list"),
    ],
)
def test_refuses_a_minibatch(X, y, error, message):
    with pytest.raises(error, match=message):
        split_batch(X, y, ["cpu"] * 2)


def test_scatter_refuses_what_is_no_tensor():
    with pytest.raises(TypeError, match="X must be a tensor, got list"):
        scatter([1, 2], ["cpu"])
