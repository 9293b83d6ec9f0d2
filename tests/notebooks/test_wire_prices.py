"""Prices of all-reduces and of steps: what two lessons draw and print."""

import json

import matplotlib.pyplot as plt
import pytest
from programs import wire_prices as wire

from tests.support.loaded import PROGRAMS

SLOW = wire.LINKS["Ethernet, 25 Gb/s"]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_a_message_waits_until_it_is_ready_and_until_the_wire_is_free():
    bars = wire.arrivals([1, 2, 9], [4, 2, 1], lambda size: size)
    assert bars == [(1, 5), (5, 7), (9, 10)]


def test_nodes_that_are_one_are_a_ring_and_more_cards_carry_more():
    fast = 1e-6, 1e12  # more than NVLink carries
    inside = wire.LINKS["NVLink of an H100"]
    assert wire.nodes(1, fast, 1)(1e8) == pytest.approx(wire.in_a_ring(1e8, 8, *inside))
    one, two = (wire.nodes(cards, SLOW) for cards in (1, 2))
    assert one(0) == two(0) == pytest.approx(30 * SLOW[0] + 224 * inside[0])
    assert one(1e9) - one(0) == pytest.approx(2 * (two(1e9) - two(0)))


def test_gpt2_and_vgg16_have_their_sizes_and_buckets_hold_all():
    assert sum(wire.gpt2()) == 4 * 124_439_808
    assert sum(size for size, _ in wire.VGG16) == 4 * 138_357_544
    buckets = wire.filled(wire.gpt2())
    assert len(buckets) == 13 and sum(buckets) == sum(wire.gpt2())
    assert wire.filled([3, 3, 3], cap=4, first=1) == [3, 6]


def test_vgg16_takes_its_computing_on_a_free_wire_and_one_message_after_it():
    assert wire.vgg16_takes(3, lambda size: 0) == pytest.approx(3)
    assert wire.vgg16_takes(3, lambda size: 2, cap=2**40) == pytest.approx(5)


def test_a_step_begins_with_its_first_event():
    events = [("forward", 5, 7), ("backward", 7, 12), ("c10d::all_reduce", 9, 10)]
    events += [("AccumulateGrad", 8, 9), ("X: AccumulateGrad", 10, 11)]
    assert wire.of_a_step(events) == (2, 6, 7, [(4, 5)])


def test_pictures_show_what_they_are_given(capsys):
    ax = wire.draw_three()
    said = [text.get_text() for text in ax.texts]
    assert sum("times one GPU" in words for words in said) == 3
    assert len(ax.patches) == 2 * 3 + 3 + 1 + 20 + 20  # all wait, however short
    wire.draw_two(1, 3, a=(4, [(2, 4), (3, 5)]))
    assert "a: a message 2.0 ms, exposed 1.0 ms" in capsys.readouterr().out


def test_rows_and_hours_are_drawn():
    with open(PROGRAMS.parent / "results/published.json") as file:
        rows = json.load(file)["waiting"]
    assert len(rows) == 9 and all(row["measured"] < 0.9 for row in rows)
    for row in rows:
        row["found"] = {"measured": 100 * row["measured"], "alone": 5, "ours": 7}
    assert len(wire.draw_rows(rows).lines) == 3
    first, second = wire.draw_hours(
        {"one": [("x", 8, [2, 3, 1])], "two": [("y", 1, []), ("z", 1, [1, 0, 0])]}, 2
    )
    assert first.texts[0].get_text() == "5.0 to 6.0 hours, $80 to 96"
    assert [bar.get_x() for bar in first.patches] == [0, 2, 5]
    assert second.texts[0].get_text() == "does not fit"


def test_vgg16s_efficiency_falls_with_more_ranks():
    rows = [
        {"rows": 64, "images_a_second": 131, "gigabits": 25, "gpus": n}
        for n in (16, 512)
    ]
    few, many = (wire.vgg16_efficiency(row, 0) for row in rows)
    assert 100 > few > many > 0
