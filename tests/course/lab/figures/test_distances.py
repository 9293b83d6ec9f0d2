from xml.etree import ElementTree

import pytest

from course.lab.figures import distances
from course.lab.figures.distances import LEFT, RIGHT_EDGE, place
from course.lab.figures.plot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"


def drawn(lengths, bound=1e-7):
    """Return the picture's text elements, and its bars as (width, fill)."""
    tree = ElementTree.fromstring(distances.draw(lengths, bound).text)
    bars = [(float(rect.get("width")), rect.get("fill")) for rect in tree.iter(SVG + "rect")]
    return [text.text for text in tree.iter(SVG + "text")], bars[1:]  # the card is first


def test_each_power_of_ten_is_as_far_from_the_next():
    steps = [place(10.0**(power + 1)) - place(10.0**power) for power in range(-12, 0)]
    assert steps == pytest.approx([(RIGHT_EDGE - LEFT) / 16] * 12)
    assert place(1) == place(7) == place(float("inf")) == RIGHT_EDGE


def test_roundings_of_two_machines_make_one_picture():
    first, other = (distances.draw({"right": rounding, "wrong": 0.3}, 1e-7)
                    for rounding in (3.1e-16, 0.0))
    assert first.text == other.text and "rounding" in first.text


def test_what_fits_is_green_and_named_in_the_title():
    words, bars = drawn({"one": 0.25, "two": 1e-15, "three": float("inf")})
    assert words[0] == "What fits: two"
    assert [fill == COLOURS[2] for _, fill in bars] == [False, True, False]
    assert {"one", "0.25", "two", "rounding", "three", "cannot be"} <= set(words)
    widths = [width for width, _ in bars]
    assert widths[1] < widths[0] < widths[2]
    assert drawn({"one": 0.25})[0][0].endswith(": none")
