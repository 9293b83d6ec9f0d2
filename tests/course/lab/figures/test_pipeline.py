from xml.etree import ElementTree

import pytest

from course.lab.figures import pipeline
from tests.support.pictures import schedule

SVG = "{http://www.w3.org/2000/svg}"


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


@pytest.mark.parametrize("stages, micro_batches", [(1, 1), (2, 1), (4, 8), (8, 4)])
@pytest.mark.parametrize("backward", [False, True])
def test_the_idle_share_is_what_the_formula_says(stages, micro_batches, backward):
    drawn = pipeline.draw(schedule(stages, micro_batches, backward), stages)
    idle = (stages - 1) / (micro_batches + stages - 1)
    assert f"{stages} devices, idle {idle:.0%} of the time" in words(drawn)


def test_every_piece_of_work_is_written_and_every_empty_slot_says_idle():
    shown = words(pipeline.draw(schedule(2, 3), 2))
    assert sorted(w for w in shown if w[0] in "FB" and len(w) == 2) == (
        sorted(["F1", "F2", "F3", "B1", "B2", "B3"] * 2))
    assert shown.count("idle") == 2 * 8 - 12


def test_work_lies_at_its_time_and_on_its_device():
    drawn = pipeline.draw([(0, 0, 1, "forward"), (1, 1, 1, "forward"),
                           (2, 1, 1, "backward"), (3, 0, 1, "backward")], 2)
    place = {(t.text, t.get("y")): float(t.get("x"))
             for t in ElementTree.fromstring(drawn.text).iter(SVG + "text")
             if t.text in ("F1", "B1")}
    rows = sorted({y for _, y in place}, key=float)
    xs = [place["F1", rows[0]], place["F1", rows[1]], place["B1", rows[1]],
          place["B1", rows[0]]]
    assert xs == sorted(xs) and len({*xs}) == 4


def test_backward_is_explained_only_where_there_is_one():
    assert not any("B1" in line for line in words(pipeline.draw(schedule(2, 2, False), 2)))
    assert any("B1: its backward" in line for line in words(pipeline.draw(
        schedule(2, 2), 2)))
