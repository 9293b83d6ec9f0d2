from xml.etree import ElementTree

import pytest

from course.lab.figures import svg, timeline
from manual_dp.lab.timeline.pace import Pace
from manual_dp.lab.timeline.predict import predict
from manual_dp.lab.timeline.spans import COMPUTE, length

SVG = "{http://www.w3.org/2000/svg}"
RUNS = {"one": predict(Pace(1, 2, 2, 1, 5), 1, 4),
        "two": predict(Pace(1, 2, 2, 1, 6), 2, 2, steps=2, layers=2)}


def boxes(picture, colour):
    """Return (left, width) of each box of a colour, from the upper left."""
    found = [tuple(float(box.get(key)) for key in ("y", "x", "width", "height"))
             for box in ElementTree.fromstring(picture.text).iter(SVG + "rect")
             if box.get("fill") == colour]
    return [(x, width) for _, x, width, height in sorted(found) if height != 12]


def words(picture):
    return [t.text for t in ElementTree.fromstring(picture.text).iter(SVG + "text")]


@pytest.mark.parametrize("name", timeline.COLOURS)
def test_each_phase_lies_between_its_times_in_its_ranks_row(name):
    scale = (timeline.RIGHT - timeline.LEFT) / max(map(length, RUNS.values()))
    expected = [(timeline.LEFT + scale * s.start, scale * (s.end - s.start))
                for spans in RUNS.values() for s in spans
                if (s.lane, s.name) == (COMPUTE, name)]
    found = boxes(timeline.draw(RUNS, "ticks"), timeline.COLOURS[name])
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        assert one == pytest.approx(other, abs=0.11)


def test_each_all_reduce_lies_between_its_times_below_its_rank():
    scale = (timeline.RIGHT - timeline.LEFT) / max(map(length, RUNS.values()))
    expected = sorted((timeline.LEFT + scale * s.start, scale * (s.end - s.start))
                      for s in RUNS["two"] if s.lane != COMPUTE)
    found = sorted(boxes(timeline.draw(RUNS, "ticks"), timeline.SENT))
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected):
        assert one == pytest.approx(other, abs=0.11)


def test_all_reduces_lie_below_their_own_rank_one_bucket_below_the_other():
    picture = timeline.draw({"two": RUNS["two"]}, "ticks")

    def tops(colour):
        return sorted({float(box.get("y")) for box in
                       ElementTree.fromstring(picture.text).iter(SVG + "rect")
                       if box.get("fill") == colour and box.get("height") != "12"})
    first, second = tops(timeline.COLOURS["forward"])
    a, b, c, d = tops(timeline.SENT)  # two buckets of each rank
    assert first + timeline.HIGH <= a < b < second
    assert second + timeline.HIGH <= c < d


def test_a_run_that_begins_later_is_drawn_from_the_left():
    later = [s._replace(start=s.start + 7, end=s.end + 7) for s in RUNS["one"]]
    assert timeline.draw({"one": later}, "ticks").text == timeline.draw(
        {"one": RUNS["one"]}, "ticks").text


def test_titles_tell_how_long_each_run_takes_and_the_legend_what_there_is():
    shown = words(timeline.draw(RUNS, "ms", "{:.1f}"))
    assert "one: 18.0 ms" in shown and f"two: {length(RUNS['two'])}.0 ms" in shown
    assert {"load", "forward", "backward", "wait", "update", "all-reduce"} <= set(shown)
    alone = words(timeline.draw({"one": predict(Pace(0, 1, 1, 1), 1, 2)}, "ticks"))
    assert not {"load", "wait", "all-reduce"} & set(alone)


def test_the_same_spans_give_the_same_bytes():
    assert timeline.draw(RUNS, "ticks").text == timeline.draw(dict(RUNS), "ticks").text
    assert svg.rank_colour(1) == timeline.SENT
