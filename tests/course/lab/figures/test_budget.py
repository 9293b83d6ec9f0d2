from xml.etree import ElementTree

import pytest

from course.lab.figures import budget, svg

SVG = "{http://www.w3.org/2000/svg}"
CASES = {"whole": {"weights": 1_000_000, "kept": 3_000_000},
         "parts": {"weights": 1_000_000, "kept": 500_000}}


def boxes(picture, colour):
    return [tuple(float(box.get(key)) for key in ("x", "width", "y"))
            for box in ElementTree.fromstring(picture.text).iter(SVG + "rect")
            if box.get("fill") == colour and box.get("height") == str(budget.HIGH)]


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


def test_parts_follow_each_other_on_one_scale():
    picture, full = budget.draw(CASES), budget.RIGHT - budget.LEFT
    weights, rest = (boxes(picture, svg.rank_colour(i)) for i in range(2))
    assert [width for _, width, _ in weights] == [pytest.approx(full / 4, abs=0.1)] * 2
    assert [width for _, width, _ in rest] == [pytest.approx(full * 3 / 4, abs=0.1),
                                               pytest.approx(full / 8, abs=0.1)]
    assert [x for x, *_ in rest] == [pytest.approx(budget.LEFT + full / 4, abs=0.1)] * 2
    assert weights[0][2] < weights[1][2]


def test_each_bar_has_its_name_and_its_sum_and_each_part_a_legend():
    shown = words(budget.draw(CASES))
    assert [w for w in shown if w in ("whole", "4.00 MB", "parts", "1.50 MB")] == [
        "whole", "4.00 MB", "parts", "1.50 MB"]
    assert shown[-2:] == ["weights", "kept"]


def test_a_part_of_no_bytes_has_no_box():
    picture = budget.draw({"a": {"weights": 10, "kept": 0}})
    assert boxes(picture, svg.rank_colour(1)) == []
