import math

import pytest

from manual_dp import allreduce, ring_allreduce, tree_allreduce
from manual_dp.lab.rounds import rounds, seconds

WORLD_SIZES = [2, 3, 4, 5, 6, 7, 8]


# rounds, against the table in manual_dp/allreduce.py

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_star_sends_one_tensor_in_each_round(world_size):
    assert rounds(allreduce, world_size) == [1] * 2 * (world_size - 1)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_ring_sends_one_chunk_in_each_round(world_size):
    assert rounds(ring_allreduce, world_size) == [1 / world_size] * 2 * (world_size - 1)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_tree_takes_two_rounds_for_each_level(world_size):
    assert rounds(tree_allreduce, world_size) == [1] * 2 * math.ceil(
        math.log2(world_size))


def test_a_round_lasts_as_long_as_its_longest_message():
    def one_whole_and_one_half(tensors):
        tensors[1].copy_(tensors[0])
        tensors[3][:8].copy_(tensors[2][:8])  # two of four chunks
    assert rounds(one_whole_and_one_half, 4) == [1]


def test_what_has_just_arrived_is_passed_on_in_the_next_round():
    def passed_on(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[1])
    assert rounds(passed_on, 3) == [1, 1]


# seconds

def test_a_round_costs_its_delay_and_its_bytes():
    assert seconds([1, 0.5], 100, alpha=3.0, beta=0.25) == 2 * 3.0 + 150 * 0.25


def test_no_rounds_take_no_time():
    assert seconds([], 100, 1, 1) == 0


@pytest.mark.parametrize(("size", "first"), [(40, tree_allreduce),
                                             (10**9, ring_allreduce)])
def test_on_eight_ranks_the_tree_wins_for_small_tensors_and_the_ring_for_large(size,
                                                                               first):
    ways = [allreduce, ring_allreduce, tree_allreduce]
    assert min(ways, key=lambda way: seconds(rounds(way, 8), size, 5e-6,
                                             1 / 12e9)) is first
