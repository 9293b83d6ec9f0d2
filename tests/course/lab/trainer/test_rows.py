"""An epoch's rows after a stop: none lost, none twice, for any number of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.lab.trainer import epochs
from course.lab.trainer.rows import epoch_order, rows_left, rows_to_go

SMALL = st.integers(1, 9)


@given(n=st.integers(0, 200), part=st.floats(0, 1), old=SMALL, new=SMALL,
       seed=st.integers(0, 50), epoch=st.integers(0, 5))
def test_no_row_is_lost_or_read_twice_when_the_world_size_changes(n, part, old, new,
                                                                  seed, epoch):
    seen = int(part * (n // old))
    order = epoch_order(n, seed, epoch).tolist()
    read = [row for rank in range(old) for row in order[rank::old][:seen]]
    left = rows_left(n, seen, old, new, seed, epoch)
    assert len(left) == new
    assert sorted(read + sum(left, [])) == list(range(n))
    assert max(map(len, left)) - min(map(len, left)) <= 1


@given(steps=st.integers(0, 6), old=st.sampled_from([1, 2, 3, 4, 6, 12]),
       new=st.sampled_from([1, 2, 3, 4, 6, 12]), seed=st.integers(0, 20))
def test_the_trainer_goes_on_where_another_number_of_ranks_stopped(steps, old, new, seed):
    plan = {"batch_size": 12, "accumulate": 1, "seed": seed}
    images = [(torch.tensor([float(row)]), row) for row in range(77)]

    def read(ranks, done):
        """Return the rows of every step from `done` on, over all ranks."""
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epochs.dist, "get_world_size", lambda: ranks)
            for rank in range(ranks):
                patch.setattr(epochs.dist, "get_rank", lambda rank=rank: rank)
                found.append([sum((y.tolist() for _, y in parts), []) for parts in
                              epochs.minibatches(plan, images, 3, torch.device("cpu"),
                                                 done)])
        return [sum(step, []) for step in zip(*found)]
    before, after = read(old, 0)[:steps], read(new, steps)
    rows = sum(before + after, [])
    assert len(rows) == 72 and len(set(rows)) == 72
    assert [sorted(step) for step in before + after] == [
        sorted(step) for step in read(1, 0)]


def test_the_order_is_another_in_each_epoch_and_for_each_seed():
    orders = {tuple(epoch_order(50, seed, epoch).tolist())
              for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_what_is_left_is_dealt_out_in_turn():
    order = [7, 3, 8, 1, 0, 6, 2, 5, 4]
    assert [rows_to_go(order, 4, rank, 2) for rank in range(2)] == [[0, 2, 4], [6, 5]]
    assert rows_to_go(order, 9, 0, 1) == []


@pytest.mark.parametrize("seen, old, new, message", [
    (1, 0, 2, "old and new must be at least 1 rank, got 0 and 2"),
    (1, 2, 0, "old and new must be at least 1 rank, got 2 and 0"),
    (6, 2, 1, "2 ranks cannot have seen 6 rows each of 10"),
    (-1, 2, 1, "2 ranks cannot have seen -1 rows each of 10"),
])
def test_what_cannot_have_been_is_refused(seen, old, new, message):
    with pytest.raises(ValueError, match=message):
        rows_left(10, seen, old, new, 0, 0)
