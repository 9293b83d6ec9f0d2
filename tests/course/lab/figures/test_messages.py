from xml.etree import ElementTree

import pytest

from course.lab.figures import messages
from course.lab.figures.plot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
RING = [(0, 1, 1.0), (1, 2, 2.0), (2, 0, 3.0), (0, 1, 3.0), (1, 2, 1.0), (2, 0, 2.0)]


def texts(picture):
    return [*ElementTree.fromstring(picture.text).iter(SVG + "text")]


def words(picture):
    return [text.text for text in texts(picture)]


def test_an_arrow_says_its_messages_in_order():
    said = words(messages.draw({"ring": (RING, [1, 2, 3], [6, 6, 6])}, 3))
    assert {"1, 3", "2, 1", "3, 2"} <= {*said}


def test_the_messages_have_their_senders_colour():
    colours = {text.text: text.get("fill") for text in texts(
        messages.draw({"ring": (RING, [1, 2, 3], [6, 6, 6])}, 3))}
    assert [COLOURS.index(colours[w]) for w in ("1, 3", "2, 1", "3, 2")] == [0, 1, 2]


def test_a_box_says_what_its_rank_holds_and_ends_with():
    said = words(messages.draw({"ring": (RING, [1, 2.5, 3], [6, 7, 8])}, 3))
    boxes = [said[i:i + 3] for i, text in enumerate(said) if text.startswith("rank")]
    assert boxes == [["rank 0", "holds 1", "ends with 6"],
                     ["rank 1", "holds 2.5", "ends with 7"],
                     ["rank 2", "holds 3", "ends with 8"]]


@pytest.mark.parametrize("ranks", [3, 4, 6, 8])
def test_the_messages_of_a_ring_stand_outside_of_it(ranks):
    ring = [(rank, (rank + 1) % ranks, 100 + rank) for rank in range(ranks)]
    drawn = texts(messages.draw({"ring": (ring, [0] * ranks, [0] * ranks)}, ranks))
    place = {text.text: (float(text.get("x")), float(text.get("y"))) for text in drawn}
    boxes = [place[f"rank {rank}"] for rank in range(ranks)]
    middle = [sum(values) / ranks for values in zip(*boxes)]
    for rank in range(ranks):
        half = [(a + b) / 2 for a, b in zip(boxes[rank], boxes[(rank + 1) % ranks])]
        out = [a - b for a, b in zip(half, middle)]
        moved = [a - b for a, b in zip(place[str(100 + rank)], half)]
        assert sum(a * b for a, b in zip(out, moved)) > 0


def test_two_ranks_messages_do_not_stand_on_each_other():
    pair = [(0, 1, 11), (1, 0, 22)]
    place = {text.text: float(text.get("y")) for text in texts(
        messages.draw({"pair": (pair, [1, 2], [3, 3])}, 2))}
    assert place["11"] - place["22"] > 30  # two lines of text and two arrows
