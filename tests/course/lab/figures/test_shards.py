from collections import Counter
from xml.etree import ElementTree

import pytest

from course.lab.figures import shards
from course.lab.figures.plot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"


def drawn(sizes):
    return ElementTree.fromstring(shards.draw({"case": sizes}).text)


@pytest.mark.parametrize("sizes", [[2, 2, 1, 0], [3], [8] * 8, [1, 1] + [0] * 6])
def test_every_row_is_a_square_in_its_ranks_colour(sizes):
    fills = Counter(rect.get("fill") for rect in drawn(sizes).iter(SVG + "rect"))
    assert [fills[COLOURS[rank]] for rank in range(len(sizes))] == sizes


@pytest.mark.parametrize("sizes", [[2, 2, 1, 0], [3], [1, 1] + [0] * 6])
def test_a_rank_without_rows_has_an_empty_place(sizes):
    places = [rect for rect in drawn(sizes).iter(SVG + "rect")
              if rect.get("stroke-dasharray")]
    assert [place.get("stroke") for place in places] == [
        COLOURS[rank] for rank, size in enumerate(sizes) if size == 0]
    assert [t.text for t in drawn(sizes).iter(SVG + "text")].count("no rows") == len(places)


def test_squares_do_not_leave_the_card():
    for rect in drawn([9] * 8).iter(SVG + "rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= 480
