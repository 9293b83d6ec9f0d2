from xml.etree import ElementTree

import pytest

from course.lab.figures import sampler
from course.lab.figures.plot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"


def boxes(ranks, examples):
    """Return (x, y, height, fill, dashed) of each box, without the card itself."""
    drawn = ElementTree.fromstring(sampler.draw({"epoch": ranks}, examples).text)
    return [(*(float(rect.get(name)) for name in ("x", "y", "height")),
             rect.get("fill"), bool(rect.get("stroke-dasharray")))
            for rect in [*drawn.iter(SVG + "rect")][1:]]


@pytest.mark.parametrize("ranks", [[[0, 2], [1, 3]], [[3, 1, 0, 2]], [[2], [3], [0], [1]]])
def test_an_example_that_one_rank_sees_has_that_ranks_colour(ranks):
    drawn = sorted(boxes(ranks, 4))
    assert [fill for *_, fill, _ in drawn] == [
        next(COLOURS[rank] for rank, mine in enumerate(ranks) if i in mine)
        for i in range(4)]


def test_an_example_that_two_ranks_see_is_cut_into_two():
    whole, *parts = sorted(boxes([[0, 1], [1]], 2))
    assert [fill for *_, fill, _ in parts] == COLOURS[:2]
    assert all(high < whole[2] / 2 for _, _, high, *_ in parts)
    assert parts[0][1] < parts[1][1]


def test_an_example_that_nobody_sees_has_an_empty_place():
    assert [dashed for *_, dashed in sorted(boxes([[0], [2]], 3))] == [False, True, False]


def test_each_epoch_has_its_row_and_its_label():
    picture = sampler.draw({"epoch 0": [[0], [1]], "epoch 1": [[1], [0]]}, 2)
    root = ElementTree.fromstring(picture.text)
    assert {"epoch 0", "epoch 1"} <= {t.text for t in root.iter(SVG + "text")}
    assert len({rect.get("y") for rect in [*root.iter(SVG + "rect")][1:]}) == 2


def test_the_title_names_what_is_seen_twice_and_never():
    picture = sampler.draw({"padded": [[0, 1], [1, 2]]}, 4)
    assert picture.title.endswith("padded: more than once 1, never 3")


def test_boxes_do_not_leave_the_card():
    drawn = ElementTree.fromstring(sampler.draw({"many": [[*range(12)]] * 6}, 12).text)
    for rect in drawn.iter(SVG + "rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= 480
        assert float(rect.get("y")) + float(rect.get("height")) <= float(drawn.get("height"))
