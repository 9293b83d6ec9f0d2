"""Charts, drawn with matplotlib: what a hash of their bytes would not tell apart."""

import matplotlib.pyplot as plt
import pytest

from course.lab.figures import plot


@pytest.fixture(autouse=True)
def no_window():
    before = plt.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def test_the_axes_that_are_asked_for_are_logarithmic_and_few_values_are_written_out():
    for log, scales in (
        (False, "linear linear"),
        (True, "linear log"),
        ("x", "log linear"),
        ("xy", "log log"),
    ):
        ax = plot.lines([16, 64, 512], {"a": [1, 2, 3]}, "x", "y", log=log)
        assert f"{ax.get_xscale()} {ax.get_yscale()}" == scales
    assert [label.get_text() for label in ax.get_xticklabels()] == ["16", "64", "512"]


@pytest.mark.parametrize(
    "ends", [[1, 1, 1, 1], [0, 100, 100, 100], [0, 0, 0, 100], [50, 50.1, 49.9, 0]]
)
def test_labels_at_the_ends_of_lines_do_not_touch(ends):
    ax = plot.lines(
        [1, 2],
        {f"run {i}": [0, end] for i, end in enumerate(ends)},
        "x",
        "y",
        width=3.5,
        height=2,
    )
    ax.figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda b: b.y0)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
    inside = ax.figure.bbox
    assert all(
        inside.y0 <= b.y0 and b.y1 <= inside.y1 and b.x1 <= inside.x1 for b in boxes
    )


def test_labels_that_would_touch_stand_half_above_and_half_below():
    ax = plot.lines(
        [1, 2],
        {"low": [0, 0], "a": [0, 50], "b": [0, 50.1], "c": [0, 50.2], "high": [0, 100]},
        "x",
        "y",
    )
    low, *near, high = [label.xyann[1] for label in ax.texts]
    assert abs(low) < 1 and abs(high) < 1 and abs(near[1]) < 1
    assert near[0] < -10 and near[2] > 10


def test_each_phase_is_equally_wide_however_many_places_it_has():
    assert plot.phases([0, 2, 3, 7]) == [0, 0.5, 1, 2, 2.25, 2.5, 2.75]
    assert plot.phases([4, 5]) == [0]
