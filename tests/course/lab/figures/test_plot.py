import matplotlib.pyplot as plt
import pytest
import torch

from course.lab.figures import plot


@pytest.fixture(autouse=True)
def no_window():
    before = plt.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


@pytest.mark.parametrize("log, scales", [
    (False, ("linear", "linear")), (True, ("linear", "log")), ("y", ("linear", "log")),
    ("x", ("log", "linear")), ("xy", ("log", "log"))])
def test_each_axis_is_logarithmic_where_it_is_asked_for(log, scales):
    ax = plot.lines([16, 64, 512], {"a": [1, 2, 3]}, "x", "y", log=log)
    assert (ax.get_xscale(), ax.get_yscale()) == scales


def test_a_few_values_on_a_logarithmic_axis_are_written_out():
    ax = plot.lines([16, 64, 512], {"a": [1, 2, 3]}, "x", "y", log="x")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["16", "64", "512"]
    assert not [*ax.get_xticks(minor=True)]


@pytest.mark.parametrize("ends", [
    [1, 1, 1, 1], [0, 100, 100, 100], [0, 0, 0, 100], [50, 50.1, 49.9, 0]])
@pytest.mark.parametrize("size", [{}, {"width": 3.5, "height": 2}])
def test_labels_at_the_ends_of_lines_do_not_touch(ends, size):
    ax = plot.lines([1, 2], {f"run {i}": [0, end] for i, end in enumerate(ends)}, "x",
                    "y", **size)
    ax.figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda b: b.y0)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
    inside = ax.figure.bbox
    assert all(inside.y0 <= b.y0 and b.y1 <= inside.y1 and b.x1 <= inside.x1
               for b in boxes)


def test_a_label_that_has_room_stands_at_its_lines_end():
    ax = plot.lines([1, 2], {"low": [0, 0], "high": [0, 1]}, "x", "y")
    assert [text.xyann[1] for text in ax.texts] == pytest.approx([0, 0], abs=0.6)


def test_labels_that_would_touch_stand_half_above_and_half_below():
    ax = plot.lines([1, 2], {"low": [0, 0], "a": [0, 50], "b": [0, 50.1], "c": [0, 50.2],
                             "high": [0, 100]}, "x", "y")
    low, *near, high = [label.xyann[1] for label in ax.texts]
    assert abs(low) < 1 and abs(high) < 1 and abs(near[1]) < 1
    assert near[0] < -10 and near[2] > 10


def test_many_points_have_no_marks_and_few_have():
    marks = [line.get_marker() for n in (5, 100) for line in plot.lines(
        range(n), {"a": [*range(n)]}, "x", "y").lines]
    assert marks == ["o", ""]


def test_bars_have_one_colour_unless_colours_are_said():
    for said, wanted in (({}, 1), ({"colours": plot.COLOURS[:3]}, 3)):
        ax = plot.bars(["a", "b", "c"], [1, 2, 3], "steps", **said)
        assert len({bar.get_facecolor() for bar in ax.patches}) == wanted


@pytest.mark.parametrize("tables", [1, 2])
def test_each_table_is_shaded_by_its_own_largest_number(tables):
    values = {f"table {i}": torch.tensor([[1.0, -4.0], [2.0, 3.0]]) * 10**i
              for i in range(tables)}
    plot.tables(values, "class", "image")
    panels = [ax for ax in plt.gcf().axes if ax.images]
    assert [ax.get_title() for ax in panels] == list(values)
    assert [ax.images[0].get_clim() for ax in panels] == [
        (-4.0 * 10**i, 4.0 * 10**i) for i in range(tables)]
