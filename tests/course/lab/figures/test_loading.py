"""The picture of waits: as many boxes as there are waits and steps, to one scale."""

import re

from course.lab.figures.loading import draw


def widths(picture, colour):
    return [float(width) for width in re.findall(
        rf'<rect [^>]*width="(-?[\d.]+)"[^>]*fill="{colour}"', picture.text)]


def test_waits_and_steps_are_drawn_to_one_scale():
    picture = draw({"none": [3, 3], "two": [0, 1]}, compute=2)
    assert repr(picture) == "picture: Waits and steps. none: 10 ticks; two: 5 ticks"
    waits, steps = widths(picture, "#e3e6ea"), widths(picture, "#3268a8")
    assert len(waits) == 3 and len(steps) == 4  # no box for a wait of 0
    tick = (steps[0] + 1) / 2
    assert [round((width + 1) / tick, 1) for width in waits] == [3, 3, 1]


def test_the_steps_end_inside_the_card():
    picture = draw({"none": [3] * 7}, compute=2)
    ends = [float(x) + float(width) for x, width in re.findall(
        r'<rect x="([\d.]+)"[^>]*width="([\d.]+)"', picture.text)]
    assert max(ends) <= 480
