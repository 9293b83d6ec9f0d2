import pytest

from course.lab.network.forms import Phase
from course.lab.network.links import Link
from course.lab.network.price import cheapest, of_steps, of_way, seconds
from course.lab.network.schedules import run

FAST, SLOW = Link("fast", 1.0, 100.0, ""), Link("slow", 10.0, 10.0, "")


def test_a_step_costs_alpha_and_its_longest_message():
    assert seconds([Phase(1, 200, None)], FAST) == 1 + 2
    assert seconds([Phase(3, 200, None)], FAST) == 3 * 3


def test_the_slower_of_both_links_decides():
    assert seconds([Phase(1, 200, 50)], FAST, SLOW) == 10 + 5
    assert seconds([Phase(1, 2000, 50)], FAST, SLOW) == 1 + 20
    assert seconds([Phase(1, None, 50)], FAST, SLOW) == 10 + 5


def test_between_is_the_same_link_if_nothing_else_is_said():
    assert seconds([Phase(1, None, 200)], FAST) == 1 + 2


def test_one_rank_sends_nothing():
    assert of_way("ring", 1, 1000, FAST) == 0


def test_a_ring_of_four_by_hand():
    # 6 steps of 100 of the 400 bytes
    assert of_way("ring", 4, 400, FAST) == 6 * (1 + 1)


def test_the_longest_message_of_each_step_counts():
    link = Link("", 1.0, 10.0, "")
    assert of_steps([[10, 30], [20]], link) == (1 + 3) + (1 + 2)
    assert of_steps([], link) == 0


@pytest.mark.parametrize("way", ["star", "ring", "tree", "halving-doubling"])
@pytest.mark.parametrize("world_size", [2, 3, 8, 13])
def test_the_price_of_a_form_is_that_of_the_run(way, world_size):
    ledger = run(way, world_size, 1001)
    assert seconds(ledger.steps, FAST) == pytest.approx(
        of_way(way, world_size, 4004, FAST), rel=1e-12)


@pytest.mark.parametrize("way", ["ring", "two-level"])
def test_the_price_over_nodes_is_that_of_the_run(way):
    ledger = run(way, 12, 12 * 7, per_node=3)
    assert seconds(ledger.steps, FAST, SLOW) == pytest.approx(
        of_way(way, 12, 4 * 12 * 7, FAST, SLOW, 3), rel=1e-12)


def test_the_cheapest_is_a_tree_for_small_tensors_and_a_ring_for_large_ones():
    link = Link("", 5e-6, 12e9, "")
    ways = ["star", "ring", "tree"]
    assert cheapest(ways, 64, 1e3, link)[1] == "tree"
    assert cheapest(ways, 64, 1e9, link)[1] == "ring"
