import pytest
import torch

from course.lab.network.ways import fold, full_nodes, two_level
from manual_dp import allreduce

SHAPES = [(), (1,), (5,), (4, 3), (0,), (101,)]


def tensors(world_size, shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, dtype=torch.float64, generator=generator)
            for _ in range(world_size)]


def ends_with_the_sum(way, world_size, shape):
    ours = tensors(world_size, shape)
    way(ours)
    theirs = tensors(world_size, shape)
    allreduce(theirs)
    for one, other in zip(ours, theirs):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    assert all(torch.equal(one, ours[0]) for one in ours)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world_size, per_node", [
    (1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3), (8, 4), (12, 3), (12, 12)])
def test_the_two_level_ring_gives_every_rank_the_sum(world_size, per_node, shape):
    ends_with_the_sum(lambda ranks: two_level(ranks, per_node), world_size, shape)


@pytest.mark.parametrize("world_size, per_node", [(5, 2), (4, 3), (2, 4), (4, 0)])
def test_nodes_that_are_not_full_are_refused_and_nothing_is_written(world_size,
                                                                    per_node):
    ours = tensors(world_size, (7,))
    with pytest.raises(ValueError, match=f"per_node, got {world_size} and {per_node}"):
        two_level(ours, per_node)
    assert all(map(torch.equal, ours, tensors(world_size, (7,))))


def test_guests_are_those_beyond_a_power_of_two_and_their_neighbours_stay():
    assert [list(ranks) for ranks in fold(7)] == [[0, 2, 4, 6], [1, 3, 5]]
    assert [list(ranks) for ranks in fold(4)] == [[0, 1, 2, 3], []]


def test_nodes_hold_neighbours():
    assert [list(node) for node in full_nodes(6, 3)] == [[0, 1, 2], [3, 4, 5]]
