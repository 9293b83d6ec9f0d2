"""What is sent is what a run of the function sends; what it costs, by hand."""

from collections import Counter
from functools import partial

import pytest
import torch

from course.lab.price import (
    LINKS,
    Link,
    counts,
    finish,
    of_steps,
    of_way,
    phases,
    seconds,
    step,
    two_level,
)
from course.lab.sends import longest, sized
from manual_dp.allreduce import WAYS

FAST, SLOW = Link("fast", 1.0, 100.0, ""), Link("slow", 10.0, 10.0, "")
FREE = Link("free", 0.0, 1e30, "")


def agree(way, function, world_size, numbers, per_node=None):
    """Hold the formula against a run of the function."""
    log = sized(function, world_size, numbers)
    parts = counts(way, world_size, numbers, per_node)
    assert sorted(longest(log)) == sorted(
        4 * size for steps, _, size in parts for _ in range(steps))
    assert len(log) == sum(steps * messages for steps, messages, _ in parts)
    assert sum(sent.size for sent in log) == 8 * (world_size - 1) * numbers


@pytest.mark.parametrize("way", WAYS)
def test_the_formula_is_what_a_run_sends_on_1_to_64_ranks(way):
    for world_size in (*range(1, 18), 31, 32, 33, 64):
        agree(way, WAYS[way], world_size, 1001)


@pytest.mark.parametrize("world_size", [1, 2, 6, 12, 24, 64])
def test_the_formula_of_two_levels_is_what_a_run_sends(world_size):
    for per_node in (1, 2, 3, 4, 8, world_size):
        if world_size % per_node == 0:
            agree("two-level", partial(two_level, per_node=per_node), world_size, 1001,
                  per_node)


@pytest.mark.parametrize("way", ["ring", "two-level"])
@pytest.mark.parametrize("world_size, per_node", [(8, 2), (8, 4), (12, 3)])
def test_phases_over_nodes_are_what_a_run_sends(way, world_size, per_node):
    function = partial(two_level, per_node=per_node) if way == "two-level" else WAYS[way]
    inside, out = Counter(), Counter()
    for sent in sized(function, world_size, 768):
        start, end = sent.source // per_node, sent.target // per_node
        if start == end:
            inside[sent.step] = max(inside[sent.step], sent.size)
        else:
            out[sent.step, start] += sent.size
    between = {step: max(size for (at, _), size in out.items() if at == step)
               for step, _ in out}
    assert sorted((inside[step], between.get(step, 0))
                  for step in {*inside, *between}) == sorted(
        (inner, outer) for steps, inner, outer in phases(way, world_size, 768, per_node)
        for _ in range(steps))


@pytest.mark.parametrize("world_size, per_node", [(1, 1), (4, 2), (6, 3), (6, 2), (8, 8)])
def test_two_levels_leave_every_rank_with_the_sum(world_size, per_node):
    generator = torch.Generator().manual_seed(0)
    tensors = list(torch.rand(world_size, 7, dtype=torch.float64, generator=generator))
    right = sum(tensor.clone() for tensor in tensors)
    two_level(tensors, per_node)
    for tensor in tensors:
        torch.testing.assert_close(tensor, right, rtol=0, atol=1e-14)


# prices by hand

def test_a_step_costs_alpha_and_its_longest_message_and_the_slower_link_decides():
    assert of_steps([[10, 30], [20]], Link("", 1.0, 10.0, "")) == (1 + 3) + (1 + 2)
    assert of_steps([], FAST) == 0
    assert seconds([(3, 200, 0)], FAST) == 3 * (1 + 2)
    assert seconds([(1, 200, 50)], FAST, SLOW) == 10 + 5
    assert seconds([(1, 2000, 50)], FAST, SLOW) == 1 + 20
    assert seconds([(1, 0, 50)], FAST, SLOW) == 10 + 5
    assert seconds([(1, 0, 200)], FAST) == 1 + 2


@pytest.mark.parametrize("arguments, price", [
    (("ring", 1, 1000, FAST), 0),
    (("ring", 4, 400, FAST), 6 * (1 + 1)),               # 6 steps of 100 bytes
    (("star", 4, 400, FAST), 6 * (1 + 4)),
    (("tree", 4, 400, FAST), 4 * (1 + 4)),
    (("halving-doubling", 4, 400, FAST), 2 * (1 + 2) + 2 * (1 + 1)),
    (("ring", 4, 400, FAST, SLOW, 2), 6 * (10 + 10)),    # one message leaves a node
    # 2 steps of 200 bytes inside; 2 of 100 between, two ranks at once
    (("two-level", 4, 400, FAST, SLOW, 2), 2 * (1 + 2) + 2 * (10 + 20)),
])
def test_an_allreduce_by_hand(arguments, price):
    assert of_way(*arguments) == pytest.approx(price)


@pytest.mark.parametrize("name, gigabytes", [
    ("pcie4", 31.5), ("nvlink4", 450), ("eth25", 3.125), ("eth100", 12.5),
    ("eth400", 50), ("ib400", 50)])
def test_links_have_the_speed_of_their_standard(name, gigabytes):
    assert LINKS[name].bandwidth / 1e9 == pytest.approx(gigabytes, rel=0.001)


def test_a_bucket_waits_for_its_gradients_and_for_the_bucket_before():
    # 4 pieces of 10 bytes in 8 seconds, a byte takes a second: full after 4 and 8
    assert finish(40, 20, 8, lambda size: size, 4) == 4 + 20 + 20
    # all at once, after backward
    assert finish(40, 1000, 8, lambda size: size, 4) == 8 + 40
    # full after 4: arrived before the other is full
    assert finish(40, 20, 8, lambda size: size / 10, 4) == 8 + 2


def test_a_step_waits_for_what_backward_cannot_hide():
    one = step(0.03, 100e6, 1, FAST)
    assert (one.step, one.exposed, one.efficiency, one.cap, one.way) == (
        0.03, 0, 1, None, None)
    # 100 MB at 1 GB/s on two ranks: 100 ms; backward has 20 ms
    two = step(0.03, 100e6, 2, Link("", 0.0, 1e9, ""))
    assert two.exposed == pytest.approx(0.1 - 0.02, rel=0.05)
    assert two.efficiency == pytest.approx(two.compute / two.step)
    assert step(0.03, 100e6, 512, FREE).efficiency == pytest.approx(1)


def test_two_levels_and_large_buckets_are_taken_where_they_are_faster():
    links = LINKS["nvlink4"], LINKS["eth25"]
    few, many = (step(0.03, 100e6, n, *links, per_node=8) for n in (8, 512))
    assert (few.way, many.way) == ("ring", "two-level") and few.cap < many.cap
