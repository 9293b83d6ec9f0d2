"""The stored runs on CIFAR-10, and what lesson 21 counts and draws."""

import matplotlib.pyplot as plt
import pytest
from programs import cifar10_ranks as cifar

from manual_dp.files.vision import ensure_torchvision


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_each_setting_has_runs_of_different_seeds():
    for ranks, rows, _ in cifar.SAME + cifar.MORE + cifar.CONTROL:
        runs = cifar.found(ranks, rows)
        assert runs and len({run["seed"] for run in runs}) == len(runs)
        assert all(run["lr"] == rows / 1280 for run in runs)


def test_a_line_of_print_and_a_row_of_dots_show_the_same(capsys):
    cifar.print_ends(cifar.SAME)
    ax = cifar.draw_ends(cifar.SAME)
    said = capsys.readouterr().out.splitlines()[1:]
    for line, dots in zip(said, ax.lines, strict=False):
        assert line.split()[-3:] == [f"{x:.1f}" for x in sorted(dots.get_xdata())]


def test_curves_end_where_two_epochs_end():
    epochs, steps = cifar.draw_curves(cifar.SAME[:1])
    assert epochs.lines[0].get_xdata()[-1] == pytest.approx(2, abs=0.01)
    assert steps.lines[0].get_xdata()[-1] == 780


def test_count_knows_the_networks_weights_and_the_small_stem_keeps_more_pixels():
    counts = cifar.count()
    net = ensure_torchvision().models.resnet50(num_classes=10)
    weights = sum(p.numel() for p in net.parameters())
    assert counts["torchvision"][1] == 4 * weights
    assert counts["torchvision"][2] == 1 and counts["cifar"][2] == 4
    assert counts["cifar"][0] > 10 * counts["torchvision"][0]


def test_seconds_are_those_that_were_stored(capsys):
    cifar.print_seconds()
    assert capsys.readouterr().out.splitlines()[-1] == "speed-up: 1.34 to 1.52"


def test_prices_have_a_panel_for_each_card_and_a_line_for_each_link():
    panels = cifar.draw_prices((1, 2), {"a": lambda n, t: n * t, "b": lambda n, t: 1})
    assert [len(ax.lines) for ax in panels] == [2, 2]
    assert list(panels[1].lines[0].get_ydata()) == [2, 4, 8, 16]
