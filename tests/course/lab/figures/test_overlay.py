import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from course.lab.figures.overlay import overlay
from course.lab.figures.plot import COLOURS
from manual_dp.models.blobs import blobs


@pytest.fixture(autouse=True)
def no_window():
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def mask(rows):
    """Return a mask for each string of rows: "#" is inside."""
    return torch.tensor([[[c == "#" for c in row] for row in rows.split()]]).long()


def ring(axes):
    lines, = axes.collections
    return {tuple(map(tuple, line.tolist())) for line in lines.get_segments()}


def draw(y, found=None):
    X = torch.linspace(0, 1, y.numel()).view(y.shape)
    return overlay(X, y, {} if found is None else {"found by us": found})[0][0]


# the outline

@pytest.mark.parametrize("rows, edges", [
    ("... .#. ...", 4), ("... .## ...", 6), ("### ### ###", 12), ("### #.# ###", 16),
    ("#.. .#. ..#", 12), ("... ... ...", 0), ("##", 6)])
def test_the_outline_is_as_long_as_the_way_round(rows, edges):
    assert len(ring(draw(mask(rows)))) == edges


def test_the_outline_runs_between_pixels():
    assert ring(draw(mask("... ..# ..."))) == {
        ((1.5, 0.5), (2.5, 0.5)), ((1.5, 1.5), (2.5, 1.5)),
        ((1.5, 0.5), (1.5, 1.5)), ((2.5, 0.5), (2.5, 1.5))}


# the figure

def test_there_is_a_row_for_each_prediction_and_a_column_for_each_image():
    X, y = blobs(3)
    grid = overlay(X.unsqueeze(1), y, {"1 rank": y, "2 ranks": X > 0.6}, "Blobs")
    assert [len(row) for row in grid] == [3, 3]
    assert [row[0].get_ylabel() for row in grid] == ["1 rank", "2 ranks"]
    figure, = {ax.figure for row in grid for ax in row}
    assert figure._suptitle.get_text() == "Blobs"
    legend, = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["true", "found"]
    for row in grid:
        for i, ax in enumerate(row):
            image = torch.tensor(ax.images[0].get_array().tolist(), dtype=X.dtype)
            assert torch.equal(image, X[i])


def test_what_was_found_is_shaded_and_nothing_else():
    found = mask("#.. ##. ...")
    image = draw(mask("... .#. ..."), found).images[1]
    assert (torch.tensor(image.get_alpha()) > 0).long().tolist() == found[0].tolist()
    colour = matplotlib.colors.to_rgba(COLOURS[0])
    assert image.cmap(0) == image.cmap(255) == colour


@pytest.mark.parametrize("true, found, words", [
    ("... .## ...", "... ##. ...", "IoU 0.33"),
    ("#.. ... ..#", "#.. ... ..#", "IoU 1.00"),
    ("#.. ... ...", "... ... ..#", "IoU 0.00"), ("... ...", "... ...", "both empty")])
def test_under_each_image_stands_its_own_iou(true, found, words):
    assert draw(mask(true), mask(found)).get_xlabel() == words


def test_without_predictions_the_truth_is_drawn_alone():
    ax = draw(mask("... .#. ..."))
    assert len(ax.images) == 1 and len(ring(ax)) == 4 and ax.get_xlabel() == ""
    legend, = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["true"]


def test_it_can_be_drawn_and_prints_nothing(tmp_path, capsys, recwarn):
    X, y = blobs(2)
    grid = overlay(X, y, {"empty": torch.zeros_like(y), "all": torch.ones_like(y)})
    grid[0][0].figure.savefig(tmp_path / "masks.png")
    assert (tmp_path / "masks.png").stat().st_size > 1000
    assert capsys.readouterr() == ("", "") and not list(recwarn)


X, Y = torch.zeros(2, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)


@pytest.mark.parametrize("X, y, found, error, message", [
    (X, Y, Y, TypeError, "found must be a dict from label to masks, got Tensor"),
    (X[0], Y, {}, ValueError, r"X must have shape .* n >= 1, got \(4, 4\)"),
    (X[:0], Y[:0], {}, ValueError, r"X must have shape .* n >= 1, got \(0, 4, 4\)"),
    (torch.zeros(2, 3, 4, 4), Y, {}, ValueError, r"got \(2, 3, 4, 4\)"),
    (X, Y[:1], {}, ValueError,
     r"y has shape \(1, 4, 4\), X's images have \(2, 4, 4\)"),
    (X, Y, {"a": Y, "b": Y[:, :2]}, ValueError, r"found\['b'\] has shape \(2, 2, 4\)"),
])
def test_refuses_what_does_not_fit_and_draws_nothing(X, y, found, error, message):
    with pytest.raises(error, match=message):
        overlay(X, y, found)
    assert plt.get_fignums() == []
