import pytest
import torch

import manual_dp
from course.lab import d2l_code
from manual_dp import check_replicas


@pytest.mark.parametrize(
    "rows, world_size, sizes",
    [(10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1])],
)
def test_there_may_be_fewer_shards_than_devices(rows, world_size, sizes):
    X, y = torch.arange(2 * rows).view(rows, 2), torch.arange(rows)
    X_shards, y_shards = d2l_code.split_batch(X, y, ["cpu"] * world_size)
    assert [len(shard) for shard in X_shards] == sizes
    assert torch.equal(torch.cat(y_shards), y)


def test_the_books_step_is_ours(batch, replicas):
    theirs, ours = replicas(3), replicas(3)
    devices = ["cpu"] * 3
    for step in range(3):
        X, y = batch(10, seed=step)
        d2l_code.train_batch(X, y, theirs, devices, 0.05)
        manual_dp.train_batch(X, y, ours, devices, 0.05)
    check_replicas(theirs)
    for p, q in zip(theirs[0], ours[0]):
        assert (p - q).abs().max() < 1e-12


def test_the_books_step_stumbles_over_too_few_rows(batch, replicas):
    # five rows over four devices: the last replica has no gradient, where ours has zero
    X, y = batch(5)
    with pytest.raises(AttributeError, match="NoneType"):
        d2l_code.train_batch(X, y, replicas(4), ["cpu"] * 4, 0.05)
    manual_dp.train_batch(X, y, replicas(4), ["cpu"] * 4, 0.05)
