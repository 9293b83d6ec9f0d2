import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from manual_dp import scatter, split_batch

ROOT = Path(__file__).parents[1]


def rows(n, *shape):
    """Return n rows of distinct numbers."""
    return torch.arange(n * torch.Size(shape).numel()).view(n, *shape)


@given(n=st.integers(1, 64), k=st.integers(1, 9))
def test_shards_are_ceil_chunks_in_order_one_for_every_device(n, k):
    X, most = rows(n, 2), -(-n // k)
    shards = scatter(X, ["cpu"] * k)
    assert isinstance(shards, tuple) and len(shards) == k
    assert [len(shard) for shard in shards] == [
        min(most, max(0, n - rank * most)) for rank in range(k)]
    assert torch.equal(torch.cat(shards), X)


@pytest.mark.parametrize("n, k, sizes", [
    (4, 2, [2, 2]), (10, 4, [3, 3, 3, 1]), (13, 3, [5, 5, 3]), (5, 4, [2, 2, 1, 0]),
    (9, 4, [3, 3, 3, 0]), (3, 4, [1, 1, 1, 0]), (1, 2, [1, 0]), (1, 1, [1]),
])
def test_sizes_by_hand(n, k, sizes):
    X_shards, y_shards = split_batch(rows(n, 1, 28, 28), rows(n), ["cpu"] * k)
    assert [len(shard) for shard in X_shards] == sizes
    assert [len(shard) for shard in y_shards] == sizes


def test_the_books_example():
    # d2l.ai 12.5.5: four rows of five over two devices
    data = torch.arange(20).reshape(4, 5)
    first, second = scatter(data, ["cpu"] * 2)
    assert first.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert second.tolist() == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_full_shards_are_torchs_chunks(n, k):
    shards = scatter(rows(n), ["cpu"] * k)
    chunks = rows(n).chunk(k)
    assert all(torch.equal(s, c) for s, c in zip(shards, chunks))
    assert not any(len(shard) for shard in shards[len(chunks):])


def test_images_keep_their_labels():
    X_shards, y_shards = split_batch(rows(7, 3), rows(7), ["cpu"] * 3)
    for X_shard, y_shard in zip(X_shards, y_shards):
        assert X_shard[:, 0].tolist() == [3 * label for label in y_shard.tolist()]


def test_labels_may_have_columns_too():
    y_shards = split_batch(rows(3, 4), rows(3, 2), ["cpu"] * 2)[1]
    assert [shard.tolist() for shard in y_shards] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_an_empty_shard_keeps_shape_and_dtype():
    X_shards, y_shards = split_batch(torch.rand(1, 1, 28, 28), rows(1), ["cpu"] * 2)
    assert X_shards[1].shape == (0, 1, 28, 28) and X_shards[1].dtype == torch.float32
    assert y_shards[1].shape == (0,) and y_shards[1].dtype == torch.int64


def test_shards_that_stay_are_views():
    X = rows(5, 2)
    scatter(X, ["cpu", torch.device("cpu")])[1][0] = -1
    assert X[3].tolist() == [-1, -1]


# on GPUs, which this machine may not have

@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are GPUs: record torch's scatter, move nothing."""
    calls = []

    def torchs_scatter(X, devices):
        calls.append(devices)
        return X.chunk(len(devices))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(nn.parallel, "scatter", torchs_scatter)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    return calls


@pytest.mark.parametrize("n, sizes", [(10, [3, 3, 3, 1]), (5, [2, 2, 1, 0])])
def test_distinct_gpus_go_through_torchs_own_scatter(gpus, n, sizes):
    devices = [torch.device("cuda", i) for i in range(4)]
    shards = scatter(rows(n), devices)
    assert gpus == [devices]
    assert [len(shard) for shard in shards] == sizes


@pytest.mark.parametrize("devices", [
    [torch.device("cuda", 0)] * 2,
    ["cuda:0", "cpu"],
    ["cuda:1", "cuda"],  # which GPU is meant is not said
    ["cuda:0", "cpu:0"],
    ["cpu", "cpu"],
])
def test_a_gpu_for_two_ranks_does_not(gpus, devices):
    shards = scatter(rows(3), devices)
    assert gpus == []
    assert [shard.tolist() for shard in shards] == [[0, 1], [2]]


# errors

@pytest.mark.parametrize("X, y, error, message", [
    (rows(4), rows(3), ValueError, "X has 4 rows but y has 3"),
    (rows(3), rows(4), ValueError, "X has 3 rows but y has 4"),
    (rows(0), rows(0), ValueError, r"X must have at least one row, got shape \(0,\)"),
    (rows(0, 1, 28, 28), rows(0), ValueError, r"at least one row, .* \(0, 1, 28, 28\)"),
    (torch.tensor(1), torch.tensor(1), ValueError, r"at least one row, got shape \(\)"),
    ([1, 2], rows(2), TypeError, "X must be a tensor, got list"),
    (rows(2), [1, 2], TypeError, "y must be a tensor, got list"),
    (None, None, TypeError, "X must be a tensor, got NoneType"),
])
def test_refuses_a_minibatch(X, y, error, message):
    with pytest.raises(error, match=message):
        split_batch(X, y, ["cpu"] * 2)


@pytest.mark.parametrize("X, error, message", [
    (rows(0, 2), ValueError, r"X must have at least one row, got shape \(0, 2\)"),
    ([1, 2], TypeError, "X must be a tensor, got list"),
])
def test_refuses_to_scatter(X, error, message):
    with pytest.raises(error, match=message):
        scatter(X, ["cpu"])


def test_refuses_to_split_over_no_device():
    with pytest.raises(ValueError, match="devices is empty: need a device for each"):
        split_batch(rows(2), rows(2), [])


def test_lengths_are_compared_without_assertions_too():
    script = """
import torch
from manual_dp import split_batch
assert False, "with -O this line does nothing"
try:
    split_batch(torch.rand(4, 2), torch.arange(3), ["cpu"] * 2)
except ValueError as error:
    print(error)
print([len(s) for s in split_batch(torch.rand(5, 2), torch.arange(5), ["cpu"] * 4)[0]])
"""
    run = subprocess.run([sys.executable, "-O", "-c", script], cwd=ROOT, timeout=300,
                         capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout == "X has 4 rows but y has 3\n[2, 2, 1, 0]\n"
