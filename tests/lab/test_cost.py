import math

import pytest
import torch

from manual_dp import (
    allgather,
    allreduce,
    reduce_scatter,
    ring_allreduce,
    tree_allreduce,
)
from manual_dp.lab.cost import busiest, operations, traffic

WORLD_SIZES = [1, 2, 3, 4, 7]


def ranks(world_size, numbers):
    """Return float64 tensors: element j of rank r is (j + 1) * 10^r."""
    return [torch.arange(1.0, numbers + 1, dtype=torch.float64) * 10**rank
            for rank in range(world_size)]


# traffic

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_star_sends_everything_through_rank_0(world_size):
    sent = traffic(allreduce, ranks(world_size, 6))
    assert sent == [[0] + [48] * (world_size - 1)] + [
        [48] + [0] * (world_size - 1) for _ in range(world_size - 1)]
    assert busiest(sent) == (world_size - 1) * 48


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_ring_sends_only_to_the_next_rank_and_never_twice_the_bytes(world_size):
    numbers = 5 * world_size
    sent = traffic(ring_allreduce, ranks(world_size, numbers))
    out = 2 * (world_size - 1) * 5 * 8  # 2 (N - 1) / N times B
    for rank, row in enumerate(sent):
        expected = [0] * world_size
        if world_size > 1:
            expected[(rank + 1) % world_size] = out
        assert row == expected
    assert busiest(sent) == out < 2 * numbers * 8


def test_a_ring_of_chunks_that_do_not_divide():
    # 7 numbers over 3 ranks: chunks of 3, 2, 2. A rank passes on all chunks but one in
    # each half, at worst leaving out 2 and 2: 5 + 5 numbers of 8 bytes.
    assert busiest(traffic(ring_allreduce, ranks(3, 7))) == 80


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_busiest_of_a_tree_sends_once_a_level(world_size):
    sent = traffic(tree_allreduce, ranks(world_size, 6))
    assert busiest(sent) == math.ceil(math.log2(world_size)) * 48
    # every rank but 0 hands its sum up once, and everyone but 0 gets the result once
    assert sum(map(sum, sent)) == 2 * (world_size - 1) * 48


@pytest.mark.parametrize("allreduce", [allreduce, ring_allreduce, tree_allreduce])
def test_a_measured_function_does_its_work(allreduce):
    tensors = ranks(3, 2)
    traffic(allreduce, tensors)
    assert [tensor.tolist() for tensor in tensors] == [[111, 222]] * 3


@pytest.mark.parametrize("function", [reduce_scatter, allgather])
def test_each_half_of_the_ring_sends_half(function):
    def half(tensors):
        function([tensor.tensor_split(3) for tensor in tensors])
    assert busiest(traffic(half, ranks(3, 6))) == 2 * 2 * 8


def test_what_stays_on_a_rank_costs_nothing():
    def local(tensors):
        for tensor in tensors:
            tensor.mul_(2).add_(tensor.clone())
    assert traffic(local, ranks(3, 4)) == [[0] * 3] * 3


def test_a_temporary_belongs_to_the_rank_that_made_it():
    def through_a_temporary(tensors):
        doubled = tensors[1] * 2
        tensors[0] += doubled
    assert traffic(through_a_temporary, ranks(2, 4)) == [[0, 0], [32, 0]]


def test_a_stack_gathers_on_the_rank_of_its_first_tensor():
    def stacked(tensors):
        total = torch.stack(tensors).sum(dim=0)
        for tensor in tensors:
            tensor.copy_(total)
    assert traffic(stacked, ranks(3, 4)) == [[0, 32, 32], [32, 0, 0], [32, 0, 0]]


# operations

def test_operations_are_counted_but_not_views():
    X = torch.ones(2, 3)
    assert operations(lambda: None) == 0
    assert operations(lambda: X.view(6).t().split(2)) == 0
    assert operations(lambda: X.exp()) == 1
    assert operations(lambda: X.view(6).add_(1).sum()) == 2


def test_operations_of_backward_count_too():
    X = torch.ones(3, requires_grad=True)
    forward = operations(lambda: X.exp().sum())
    both = operations(lambda: X.exp().sum().backward())
    # and back: a one to start from, and ones times exp(X); expanding it is a view
    assert (forward, both) == (2, 4)
