import re
from xml.etree import ElementTree

import pytest

from course.lab.figures import svg, turns
from course.lab.figures.plot import FAINT
from manual_dp.lab import replay

SVG = "{http://www.w3.org/2000/svg}"


def drawn(paces, ticks):
    return turns.draw({"wait": replay.together(paces, ticks),
                       "alone": replay.alone(paces, ticks)}, len(paces), ticks)


def boxes(picture, colour):
    """Return (left, width, top) of each box of a colour, from the upper left."""
    found = [tuple(float(box.get(key)) for key in ("y", "x", "width"))
             for box in ElementTree.fromstring(picture.text).iter(SVG + "rect")
             if box.get("fill") == colour]
    return [(x, width, y) for y, x, width in sorted(found)]


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


@pytest.mark.parametrize("paces, ticks", [([1, 1, 1, 4], 16), ([2, 3], 12)])
def test_a_turn_lies_between_its_ticks_in_its_workers_row(paces, ticks):
    picture = drawn(paces, ticks)
    tick = (turns.RIGHT - turns.LEFT) / ticks
    for worker, _ in enumerate(paces):
        expected = [t for way in (replay.together, replay.alone)
                    for t in way(paces, ticks) if t.worker == worker]
        found = boxes(picture, svg.rank_colour(worker))
        assert [(x, width) for x, width, _ in found] == [
            (pytest.approx(turns.LEFT + tick * t.start, abs=0.1),
             pytest.approx(tick * (t.end - t.start) - 1, abs=0.1)) for t in expected]
        assert len({y for *_, y in found}) == 2  # a row in each panel


def test_every_worker_has_a_grey_row_behind_its_turns_in_each_panel():
    rows = boxes(drawn([1, 1, 4], 8), FAINT)
    assert [(x, width) for x, width, _ in rows] == [
        (turns.LEFT, turns.RIGHT - turns.LEFT)] * 6


def test_the_titles_count_gradients_and_idle_time():
    shown = words(drawn([1, 1, 1, 4], 16))
    assert "wait: 16 gradients, idle 56%" in shown
    assert "alone: 52 gradients, idle 0%" in shown
    assert "time, 16 ticks" in shown


def test_the_hand_of_the_clock_runs_through_rows_and_no_title():
    root = ElementTree.fromstring(drawn([1, 1, 4], 8).text)
    [hand] = [path for path in root.iter(SVG + "path") if path.get("stroke") == "#c2410c"]
    numbers = [float(n) for n in re.findall(r"[-.\d]+", hand.get("d"))]
    pieces = list(zip(numbers[1::4], numbers[3::4]))  # x, from, x, to
    assert len(pieces) == 2
    heights = [(float(text.get("y")), text.text) for text in root.iter(SVG + "text")]
    for low, high in pieces:
        crossed = [text for y, text in heights if low < y < high]
        assert {text for text in crossed if text != "waits"} == {
            "worker 0", "worker 1", "worker 2"}


def test_waits_is_written_where_there_is_room_only():
    assert words(drawn([1, 4], 8)).count("waits") == 2  # after each of its turns
    assert "waits" not in words(drawn([1, 2], 40))
