"""Ranks meet in a store in which earlier starts have left their words."""

import datetime
import threading

import pytest
import torch.distributed as dist

from course.lab.trainer.meeting import common, settled


@pytest.fixture
def store():
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=60))
    return store


def meet(store, world_size, late=()):
    """Return the word that each rank gets; ranks in `late` start half a second later."""
    words = [None] * world_size

    def rank(number):
        words[number] = settled(store, number, world_size, 60)
    threads = [threading.Timer(0.5 * (number in late), rank, [number])
               for number in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return words


@pytest.mark.parametrize("late", [(), (0,), (1, 3)])
def test_ranks_agree_on_a_word_that_no_start_had_before(store, late):
    words = [meet(store, 4, late) for _ in range(4)]
    assert all(len(set(start)) == 1 and None not in start for start in words)
    assert len({start[0] for start in words}) == 4


def test_a_start_that_ended_half_way_does_not_stop_the_next(store):
    for number in range(3):  # they put up their words, and rank 0 a list; then they died
        store.set(f"word {number}", f"old {number}")
    store.set("list", '["old 0", "old 1", "old 2"]')
    words = meet(store, 3, late=(1, 2))
    assert len(set(words)) == 1 and words[0] not in (None, "old 0")


@pytest.mark.parametrize("first, then", [(2, 5), (5, 2), (3, 1)])
def test_the_next_start_may_have_more_ranks_or_fewer(store, first, then):
    before, after = meet(store, first), meet(store, then)
    assert len(set(after)) == 1 and after[0] not in (None, before[0])


def test_a_rank_that_nobody_meets_says_so(store):
    store.set("list", '["another", "start"]')
    with pytest.raises(TimeoutError, match="the 2 ranks did not meet within 0.3 s"):
        settled(store, 1, 2, 0.3)


@pytest.mark.parametrize("asked, taken", [
    (["nccl", "nccl", "nccl"], "nccl"), (["gloo", "gloo"], "gloo"),
    (["nccl", "nccl", "gloo"], "gloo"), (["gloo", "nccl"], "gloo")])
def test_one_host_with_too_few_gpus_decides_for_all(store, asked, taken):
    found = [None] * len(asked)

    def rank(number):
        found[number] = common(store, number, len(asked), asked[number])
    threads = [threading.Timer(0.2 * number, rank, [number]) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert found == [taken] * len(asked)
