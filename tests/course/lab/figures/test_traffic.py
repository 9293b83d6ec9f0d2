from xml.etree import ElementTree

from course.lab.figures import traffic
from course.lab.figures.plot import COLOURS
from course.lab.wire import Sent

SVG = "{http://www.w3.org/2000/svg}"
STAR = [Sent(0, 1, "weights", 400), Sent(1, 0, "gradients", 300), Sent(0, 2, "rows", 100)]
RING = [Sent(rank, (rank + 1) % 3, "chunk", 200) for rank in range(3)]


def elements(picture, tag):
    return [*ElementTree.fromstring(picture.text).iter(SVG + tag)]


def lines(picture):
    """Return (colour, thickness) of each arrow."""
    return [(path.get("stroke"), float(path.get("stroke-width")))
            for path in elements(picture, "path") if path.get("fill") == "none"]


def words(picture):
    return [text.text for text in elements(picture, "text")]


def test_an_arrow_is_as_thick_as_its_bytes_are_many_on_one_scale():
    drawn = lines(traffic.draw({"star": STAR, "ring": RING}, 3))
    assert [thick for _, thick in drawn] == [12, 3, 9, 6, 6, 6]


def test_an_arrow_has_its_senders_colour():
    drawn = lines(traffic.draw({"star": STAR, "ring": RING}, 3))
    assert [COLOURS.index(colour) for colour, _ in drawn] == [0, 0, 1, 0, 1, 2]


def test_what_is_sent_in_parts_is_one_arrow_of_their_sum():
    parts = [Sent(0, 1, "x", 5), Sent(0, 1, "y", 7)]
    drawn = lines(traffic.draw({"parts": parts, "one": [Sent(0, 1, "x", 24)]}, 2))
    assert [thick for _, thick in drawn] == [6, 12]


def test_each_box_says_what_goes_out_and_what_comes_in():
    said = words(traffic.draw({"star": STAR}, 3))
    boxes = [said[i:i + 3] for i, text in enumerate(said) if text.startswith("device")]
    assert boxes == [["device 0", "out 500 B", "in 300 B"],
                     ["device 1", "out 300 B", "in 400 B"],
                     ["device 2", "out 0 B", "in 100 B"]]


def test_the_busiest_device_is_named_by_what_it_sends_or_gets():
    assert "busiest device: 500 B" in words(traffic.draw({"star": STAR}, 3))
    into = [Sent(1, 0, "x", 9), Sent(2, 0, "x", 9)]
    assert "busiest device: 18 B" in words(traffic.draw({"into": into}, 3))


def test_there_and_back_stand_side_by_side():
    there, back = [path.get("d") for path in elements(traffic.draw(
        {"pair": [Sent(0, 1, "x", 9), Sent(1, 0, "x", 9)]}, 2), "path")
        if path.get("fill") == "none"]
    heights = [float(path.split(" L")[0].split(",")[1]) for path in (there, back)]
    assert heights[0] - heights[1] >= traffic.THICK


def test_devices_may_be_called_ranks():
    picture = traffic.draw({"star": STAR}, 3, "rank")
    assert {"rank 0", "rank 1", "rank 2", "busiest rank: 500 B"} <= {*words(picture)}
    assert "device" not in picture.text
