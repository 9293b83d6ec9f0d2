from xml.etree import ElementTree

import pytest

from course.lab.figures import buckets, svg

SVG = "{http://www.w3.org/2000/svg}"


def boxes(picture):
    """Return (left, width, colour) of each bucket, bar by bar from left to right."""
    rects = [*ElementTree.fromstring(picture.text).iter(SVG + "rect")][1:]  # not the card
    return [(float(r.get("x")), float(r.get("width")), r.get("fill")) for r in rects]


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


def test_buckets_stand_in_their_order_and_fill_the_bar():
    drawn = boxes(buckets.draw({"a": [[("b2", 1), ("W2", 3)], [("b1", 4)]]}))
    assert [colour for *_, colour in drawn] == [svg.rank_colour(0), svg.rank_colour(1)]
    (left, width, _), (second, last, _) = drawn
    assert left == buckets.LEFT and second == pytest.approx(left + width + 2, abs=0.1)
    assert second + last + 2 == pytest.approx(buckets.RIGHT, abs=0.1)


def test_beyond_its_name_a_box_is_as_long_as_its_numbers_are_many():
    drawn = boxes(buckets.draw({"a": [[("W1", 30)], [("W2", 10)]]}))
    least = svg.wide("W1", buckets.SMALL) + 4
    assert drawn[0][1] - least == pytest.approx(3 * (drawn[1][1] - least), abs=0.5)


def test_a_bucket_names_its_first_and_its_last():
    shown = words(buckets.draw({"cap 1": [[("b2", 1), ("W2", 1), ("b1", 1)], [("W1", 1)]],
                                "cap 9": [[("W1", 1)]]}))
    assert {"b2 to b1", "W1", "cap 1: 2 buckets", "cap 9: 1 bucket"} <= {*shown}
