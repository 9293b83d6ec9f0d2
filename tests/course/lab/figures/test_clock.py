from xml.etree import ElementTree

import pytest

from course.lab.figures import clock, svg
from course.lab.figures.plot import FAINT
from manual_dp.lab.trace import Event
from tests.support.pictures import backward

SVG = "{http://www.w3.org/2000/svg}"


def boxes(picture, colour):
    """Return (left, width, top) of each box of a colour, from left to right."""
    return sorted(tuple(float(rect.get(key)) for key in ("x", "width", "y"))
                  for rect in ElementTree.fromstring(picture.text).iter(SVG + "rect")
                  if rect.get("fill") == colour)


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


@pytest.mark.parametrize("layers", [2, 4, 8])
def test_the_longest_run_fills_the_width_and_all_are_on_its_clock(layers):
    drawn = clock.draw({"after": backward(layers, False),
                        "during": backward(layers, True)}, "ticks")
    tick = (clock.RIGHT - clock.LEFT) / (3 * layers)
    waits = boxes(drawn, FAINT)
    assert [width for _, width, _ in waits] == [
        pytest.approx(tick * wait, abs=0.1) for wait in sorted((1, layers))]
    assert [left for left, *_ in waits] == [
        pytest.approx(clock.LEFT + 2 * layers * tick, abs=0.1)] * 2
    assert f"after: {3 * layers} ticks" in words(drawn)
    assert f"during: {2 * layers + 1} ticks" in words(drawn)


def test_a_bucket_lies_from_its_start_to_its_arrival_below_its_gradients():
    tick = (clock.RIGHT - clock.LEFT) / 9
    drawn = clock.draw({"during": backward(4, True)}, "ticks")
    for bucket in range(4):
        gradient, travel = boxes(drawn, svg.rank_colour(bucket))
        assert gradient[:2] == (pytest.approx(clock.LEFT + 2 * bucket * tick, abs=0.1),
                                pytest.approx(2 * tick - 1, abs=0.1))
        assert travel[:2] == (pytest.approx(clock.LEFT + (2 * bucket + 2) * tick, abs=0.1),
                              pytest.approx(tick, abs=0.1))
        assert travel[2] > gradient[2]


def test_a_layer_keeps_its_number_where_its_name_has_no_room():
    events = backward(4, True)
    slow = [event._replace(time=3 * event.time) for event in events]
    shown = words(clock.draw({"quick": events, "slow": slow}, "ticks"))
    assert [w for w in shown if w in "1234"] == [*"4321"]
    assert [w for w in shown if w in ("layer 4", "layer 1")] == ["layer 4", "layer 1"]


def test_a_name_is_left_out_where_it_has_no_room():
    def event(time, what, name="", bucket=None):
        return Event(time, what, name, bucket)
    drawn = clock.draw({"run": [
        event(0.01, "ready", "bias", 0), event(9, "ready", "layer.weight", 0),
        event(9, "start", bucket=0), event(9, "wait"), event(9.9, "arrive", bucket=0),
        event(10, "end")]}, "ms", "{:.1f}")
    assert "layer" in words(drawn) and "bias" not in words(drawn)
    assert "run: 10.0 ms" in words(drawn)
