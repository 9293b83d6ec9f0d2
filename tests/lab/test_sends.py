import pytest
import torch

from manual_dp import (
    allgather,
    allreduce,
    reduce_scatter,
    ring_allreduce,
    tree_allreduce,
)
from manual_dp.lab.cost import traffic
from manual_dp.lab.sends import record

SIZES = range(2, 9)
STEPS = {allreduce: lambda n: 2 * (n - 1), ring_allreduce: lambda n: 2 * (n - 1),
         tree_allreduce: lambda n: 2 * (n - 1).bit_length()}
every = pytest.mark.parametrize("world_size", SIZES)
functions = pytest.mark.parametrize("function", STEPS)


@functions
@every
def test_there_are_as_many_steps_as_the_page_says(function, world_size):
    _, steps = record(function, world_size)
    assert len(steps) == STEPS[function](world_size)


@functions
@every
def test_every_rank_starts_with_its_own_and_ends_with_every_ranks(function, world_size):
    start, steps = record(function, world_size)
    for rank, row in enumerate(start):
        assert row == [[int(rank == other) for other in range(world_size)]] * world_size
    assert steps[-1]["held"] == [[[1] * world_size] * world_size] * world_size


@functions
@every
def test_what_is_recorded_comes_to_the_bytes_that_traffic_counts(function, world_size):
    _, steps = record(function, world_size)
    tensors = [torch.rand(world_size, dtype=torch.float64) for _ in range(world_size)]
    sent = [[0] * world_size for _ in range(world_size)]
    for step in steps:
        for rank, peer, chunks in step["sends"]:
            sent[rank][peer] += 8 * len(chunks)
    assert sent == traffic(function, tensors)


@functions
@every
def test_no_rank_sends_or_receives_twice_in_a_step(function, world_size):
    for step in record(function, world_size)[1]:
        senders, peers, _ = zip(*step["sends"])
        assert len({*senders}) == len(senders) and len({*peers}) == len(peers)


@every
def test_the_states_of_a_ring_follow_from_its_chunks_alone(world_size):
    # an independent count: sets of ranks, passed on all at once
    _, steps = record(ring_allreduce, world_size)
    sets = [[{rank} for _ in range(world_size)] for rank in range(world_size)]
    for number, step in enumerate(steps):
        before = [[set(chunk) for chunk in row] for row in sets]
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - number - (number < world_size - 1)) % world_size
            if number >= world_size - 1:
                i = (rank - (number - world_size + 1)) % world_size
            assert (rank, peer, [i]) in step["sends"]
            sets[peer][i] = before[rank][i] | (
                before[peer][i] if number < world_size - 1 else set())
        assert step["held"] == [[[int(other in chunk) for other in range(world_size)]
                                 for chunk in row] for row in sets]


def test_the_two_halves_of_a_ring_are_told_apart():
    _, steps = record(ring_allreduce, 4)
    assert [step["kind"] for step in steps] == ["add"] * 3 + ["copy"] * 3


def test_a_half_can_be_recorded_on_its_own():
    def halves(function):
        return lambda tensors: function([t.tensor_split(3) for t in tensors])
    assert [len(record(halves(f), 3)[1]) for f in (reduce_scatter, allgather)] == [2, 2]


def test_a_sum_made_elsewhere_is_sent_to_where_it_is_made():
    def gather(tensors):
        total = tensors[0] + tensors[1]
        total = total + tensors[2]
        for tensor in tensors:
            tensor.copy_(total)
    _, steps = record(gather, 3)
    assert [step["sends"] for step in steps] == [
        [(1, 0, [0, 1, 2])], [(2, 0, [0, 1, 2])], [(0, 1, [0, 1, 2])],
        [(0, 2, [0, 1, 2])]]
    assert steps[-1]["held"] == [[[1] * 3] * 3] * 3


def test_a_part_that_was_computed_first_is_known_by_where_it_goes():
    def second_chunk(tensors):
        tensors[1][2:].copy_(tensors[0][2:] * 1)
    assert record(second_chunk, 2)[1][0]["sends"] == [(0, 1, [1])]


def test_what_has_only_just_come_is_not_passed_on_in_the_same_step():
    def chain(tensors):
        for rank in range(3):
            tensors[rank + 1].add_(tensors[rank])
    assert [step["sends"][0][:2] for step in record(chain, 4)[1]] == [
        (0, 1), (1, 2), (2, 3)]


def test_a_rank_that_is_added_twice_is_seen_twice():
    def twice(tensors):
        tensors[0].add_(tensors[1]).add_(tensors[1])
    assert record(twice, 2)[1][-1]["held"][0] == [[1, 2]] * 2


def test_an_assignment_to_the_list_leaves_what_the_ranks_hold():
    def shipped(data):
        for i in range(1, len(data)):
            data[0][:] += data[i]
        for i in range(1, len(data)):
            data[i] = data[0].clone()
    _, steps = record(shipped, 3)
    assert len(steps) == 2
    assert steps[-1]["held"][1] == [[0, 1, 0]] * 3


def test_no_send_is_no_step():
    start, steps = record(lambda tensors: None, 3)
    assert steps == [] and len(start) == 3


@pytest.mark.parametrize("world_size", [0, 1, 9])
def test_other_world_sizes_are_refused(world_size):
    with pytest.raises(ValueError, match=f"world_size must be 2 to 8, got {world_size}"):
        record(lambda tensors: tensors[0].fill_(1 / 0), world_size)
