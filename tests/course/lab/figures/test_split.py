from xml.etree import ElementTree

import pytest

from course.lab.figures import split

SVG = "{http://www.w3.org/2000/svg}"


def arrows(picture):
    """Return (thickness, from left to right, heads) of each arrow."""
    paths = [*ElementTree.fromstring(picture.text).iter(SVG + "path")]
    found = []
    for line, head in zip(paths, paths[1:]):
        if line.get("fill") != "none":  # no arrow's line: a head, or a device's lane
            continue
        start, end = [float(part.split(",")[0]) for part in
                      line.get("d").replace("M", "").split(" L")]
        found.append((float(line.get("stroke-width")), start < end,
                      head.get("d").count("Z")))
    return found


def test_things_go_back_and_forth_and_device_0_begins():
    drawn = arrows(split.draw({"by layer": [("a", 10), ("b", 10), ("c", 10)]}))
    assert [right for _, right, _ in drawn] == [True, False, True]
    assert [heads for *_, heads in drawn] == [1, 1, 1]


def test_a_sender_that_is_named_sends():
    drawn = arrows(split.draw({"by data": [("a", 10, 1), ("b", 10, 0), ("c", 1, "both")]}))
    assert [right for _, right, _ in drawn] == [False, True, True]
    assert [heads for *_, heads in drawn] == [1, 1, 2]


def test_an_arrow_is_as_thick_as_its_bytes_are_many_over_all_ways():
    drawn = arrows(split.draw({"one": [("a", 400)], "two": [("b", 200), ("c", 1)]}))
    assert [thick for thick, *_ in drawn] == [split.THICK, split.THICK / 2, 1]


def test_each_arrow_and_each_way_says_its_bytes():
    picture = split.draw({"by data": [("gradients", 1_032_544), ("sum", 1_032_544)]})
    words = [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]
    assert {"gradients, 1.03 MB", "sum, 1.03 MB", "2.07 MB a step"} <= {*words}


@pytest.mark.parametrize("number, words", [
    (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (102_400, "102 kB"), (999_499, "999 kB"),
    (999_600, "1 MB"), (1_105_408, "1.11 MB"), (35_300_000, "35.3 MB")])
def test_bytes_are_said_with_three_digits(number, words):
    assert split.size(number) == words
