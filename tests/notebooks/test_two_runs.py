"""notebooks/programs/two_runs.py: runs of one training, laid side by side."""

import matplotlib.pyplot as plt
import pytest
import torch
from programs import two_runs  # notebooks/programs

from manual_dp import largest_difference, lenet, loss


def test_both_dtypes_start_from_the_same_numbers():
    X, y, params = two_runs.start(3)
    X32, y32, params32 = two_runs.start(3, torch.float32)
    assert torch.equal(X.float(), X32) and torch.equal(y, y32)
    for p, q in zip(params, params32):
        assert torch.equal(p.float(), q)


def test_a_run_returns_the_loss_before_each_step_and_the_weights_after_it():
    X, y, params = two_runs.start()
    losses, weights = two_runs.run(X, y, params, 3, 0.1, steps=2)
    for value, before in zip(losses, (params, weights[0])):
        assert value == pytest.approx(float(loss(lenet(X, before), y).mean()))
    assert largest_difference(weights[0], weights[1]) > 1e-3


def test_runs_are_compared_step_by_step():
    run = [0.0, 0.0], [[torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])]]
    other = [0.0, 0.0], [[torch.tensor([1.5, 2.0])], [torch.tensor([3.0, 2.0])]]
    assert two_runs.apart(run, other) == [0.5, 2.0]


def test_a_mean_of_means_is_wrong_for_uneven_shards_alone():
    X, y, params = two_runs.start()
    assert two_runs.mean_of_means(X[:8], y[:8], params) < 1e-12
    assert two_runs.mean_of_means(X, y, params) > 0.1


def test_the_step_of_means_is_wrong_for_uneven_shards_alone():
    X, y, params = two_runs.start()
    for rows, wrong in (8, False), (10, True):
        alone = two_runs.run(X[:rows], y[:rows], params, 1, 0.1, steps=1)
        step = two_runs.step_of_means
        many = two_runs.run(X[:rows], y[:rows], params, 4, 0.1, 1, step)
        assert many[0] == pytest.approx(alone[0])
        assert (two_runs.apart(many, alone)[0] > 1e-3) == wrong


def test_pictures_have_a_line_for_each_run_and_a_column_for_each_rate(monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    two_runs.draw_losses({"one": ([2, 1], []), "two": ([2, 1], [])})
    gaps = {"one": [1e-9, 1e-8], "two": [1e-9, 1e-8]}
    two_runs.draw_apart({0.1: ([2, 1], gaps), 0.2: ([2, 1], gaps)})
    assert [len(ax.lines) for ax in shown[0].axes] == [2]
    assert [len(ax.lines) for ax in shown[1].axes] == [2, 2, 1, 1]


def test_what_the_lesson_says_of_ten_starts_is_printed(capsys):
    two_runs.parting(0.1, torch.float32, seeds=[0], steps=3)
    two_runs.growth(0.1, steps=7, seeds=[0])
    two_runs.limits(seeds=[0], cases=[(0.1, 1)])
    two_runs.uneven(seeds=[0])
    out = capsys.readouterr().out
    assert out.count("seed 0") == 2
    assert "mean, by ranks: " in out and "(-)" in out
    assert "  all: 4 devices: " in out
    assert "mean of means, 3, 3, 3, 1 rows: 66%" in out


def test_the_parts_that_are_named_are_printed(capsys, monkeypatch):
    for part in "limits", "uneven", "growth":
        monkeypatch.setattr(two_runs, part, lambda part=part: print(part))
    monkeypatch.setattr(two_runs, "parting", lambda lr: print("parting", lr))
    two_runs.main(["uneven"])
    assert capsys.readouterr().out == "uneven\n"
    two_runs.main([])
    out = capsys.readouterr().out.splitlines()
    assert out == ["limits", "uneven", "parting 0.02", "parting 0.1", "growth"]


def test_a_program_that_parts_everywhere_is_told_from_which_step(capsys):
    two_runs.parting(1.0, torch.float32, seeds=[0], steps=4)
    wrong = capsys.readouterr().out.splitlines()[-1]
    assert "mean, by ranks: " in wrong and wrong.endswith(" on")
