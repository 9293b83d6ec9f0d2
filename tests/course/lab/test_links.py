"""What a message and a ring cost, by hand; links have the speed of their standard."""

import pytest

from course.lab.links import LINKS, Link, message, ring

FAST = Link("fast", 1.0, 100.0, "")


def test_a_message_costs_alpha_and_its_bytes_and_no_message_nothing():
    assert message(200, FAST) == 1 + 2 and message(0, FAST) == 0


def test_a_ring_by_hand():
    # 4 rounds; the largest of the 3 chunks has 34 of the 100 numbers
    assert ring(3, 400, FAST) == pytest.approx(4 * (1 + 1.36))


@pytest.mark.parametrize(
    "name, gigabytes",
    [
        ("pcie4", 31.5),
        ("nvlink4", 450),
        ("eth25", 3.125),
        ("eth100", 12.5),
        ("eth400", 50),
        ("ib400", 50),
    ],
)
def test_links_have_the_speed_of_their_standard(name, gigabytes):
    assert LINKS[name].bandwidth / 1e9 == pytest.approx(gigabytes, rel=0.001)
