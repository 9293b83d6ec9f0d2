import math

import pytest
import torch

from manual_dp import allreduce, ring_allreduce, tree_allreduce
from manual_dp.lab.clock import finish, messages
from manual_dp.lab.cost import traffic

WORLD_SIZES = [1, 2, 3, 4, 7, 8]
WAYS = [allreduce, ring_allreduce, tree_allreduce]
NUMBERS = 840  # divides by all of them


def ranks(world_size, numbers=NUMBERS):
    """Return distinct float64 tensors, one for each rank."""
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(numbers, generator=generator, dtype=torch.float64)
            for _ in range(world_size)]


def chain(way, world_size):
    """Return the longest chain, as (messages, tensors)."""
    sent = messages(way, ranks(world_size))
    return finish(sent, 1, 0), finish(sent, 0, 1) / (NUMBERS * 8)


# messages

@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_messages_carry_the_bytes_that_traffic_counts(way, world_size):
    carried = [[0] * world_size for _ in range(world_size)]
    for message in messages(way, ranks(world_size, 5)):
        carried[message.source][message.target] += message.size
    assert carried == traffic(way, ranks(world_size, 5))


def test_messages_are_in_the_order_of_the_program():
    sent = messages(allreduce, ranks(3))
    assert [message[:2] for message in sent] == [(1, 0), (2, 0), (0, 1), (0, 2)]


def test_what_stays_on_a_rank_is_no_message():
    assert messages(lambda tensors: tensors[0].add_(tensors[0]), ranks(2)) == []


def test_what_a_rank_makes_of_a_tensor_is_its_own():
    def doubled_at_home(tensors):
        tensors[0].add_(tensors[1] * 2)
    assert [message[:3] for message in messages(doubled_at_home, ranks(2))] == [
        (1, 0, NUMBERS * 8)]


# finish, against the table in manual_dp/allreduce.py

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_star_is_one_long_chain(world_size):
    assert chain(allreduce, world_size) == (2 * (world_size - 1),) * 2


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_ring_has_as_many_messages_in_a_row_but_only_chunks(world_size):
    count, tensors = chain(ring_allreduce, world_size)
    assert count == 2 * (world_size - 1)
    assert tensors == pytest.approx(2 * (world_size - 1) / world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_tree_has_two_messages_in_a_row_for_each_level(world_size):
    assert chain(tree_allreduce, world_size) == (2 * math.ceil(math.log2(world_size)),
                                                 ) * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_seconds_are_those_of_the_longest_chain(way, world_size):
    count, tensors = chain(way, world_size)
    seconds = finish(messages(way, ranks(world_size)), 3.0, 0.5)
    assert seconds == pytest.approx(count * 3.0 + tensors * NUMBERS * 8 * 0.5)


def test_a_rank_sends_one_message_at_a_time():
    def from_one_to_two_others(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[0])
    assert finish(messages(from_one_to_two_others, ranks(3)), 1, 0) == 2


def test_a_rank_receives_one_message_at_a_time():
    def from_two_to_places_of_one(tensors):
        tensors[0][:1].copy_(tensors[1][:1])
        tensors[0][1:2].copy_(tensors[2][:1])
    assert finish(messages(from_two_to_places_of_one, ranks(3)), 1, 0) == 2


def test_pairs_that_have_nothing_to_do_with_each_other_share_the_time():
    def two_pairs(tensors):
        tensors[0].copy_(tensors[1])
        tensors[2].copy_(tensors[3])
    assert finish(messages(two_pairs, ranks(4)), 1, 0) == 1


def test_a_message_waits_until_what_it_reads_has_arrived():
    def passed_on(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[1])

    def another_part_passed_on(tensors):
        tensors[1][:1].copy_(tensors[0][:1])
        tensors[2][1:2].copy_(tensors[1][1:2])
    assert finish(messages(passed_on, ranks(3)), 1, 0) == 2
    assert finish(messages(another_part_passed_on, ranks(3)), 1, 0) == 1


def test_a_message_waits_also_for_what_its_numbers_were_made_of():
    def doubled_then_passed_on(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[1] * 2)

    def copied_then_passed_on(tensors):
        buffer = torch.empty_like(tensors[1])
        tensors[1].copy_(tensors[0])
        buffer.copy_(tensors[1])
        tensors[2].copy_(buffer)
    assert finish(messages(doubled_then_passed_on, ranks(3)), 1, 0) == 2
    assert finish(messages(copied_then_passed_on, ranks(3)), 1, 0) == 2


def test_nothing_is_overwritten_while_it_is_being_sent():
    def swapped_in_turn(tensors):
        tensors[1].copy_(tensors[0])
        tensors[0].copy_(tensors[2])
    assert finish(messages(swapped_in_turn, ranks(3)), 1, 0) == 2


def test_no_messages_take_no_time():
    assert finish([], 1, 1) == 0
