"""The stacked bar: as long as its parts, in their order."""

import matplotlib
import pytest

from course.lab.figures.laps import draw

matplotlib.use("Agg")


def test_the_parts_of_each_run_follow_each_other_in_milliseconds():
    runs = {"1 rank": {"forward": 0.25, "update": 0.5}, "2 ranks": {"forward": 1, "update": 2}}
    ax = draw(runs, "a step")
    bars = [value for bar in ax.patches for value in (bar.get_x(), bar.get_width())]
    assert bars == pytest.approx([0, 250, 0, 1000, 250, 500, 1000, 2000])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["forward", "update"]
    assert [text.get_text() for text in ax.get_yticklabels()] == [*runs]
