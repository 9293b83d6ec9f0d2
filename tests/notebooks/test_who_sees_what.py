"""notebooks/programs/who_sees_what.py: rows are dealt as said, and networks learn them."""

import matplotlib.pyplot as plt
import pytest
import torch
from programs import who_sees_what  # notebooks/programs

ONE, ONE_WITHOUT, EACH, EACH_WITHOUT, MIXED = range(5)


@pytest.fixture(scope="module")
def ways():
    return list(who_sees_what.share(25, 4, epochs=3, runs=2).values())


def counts(rows):
    return rows.flatten().bincount(minlength=25)


def test_one_seed_shows_each_row_in_each_epoch_and_repeats_to_fill_up(ways):
    for rows in ways[ONE].flatten(0, 1):
        assert sorted(counts(rows).tolist()) == [1] * 22 + [2] * 3


def test_without_set_epoch_all_epochs_are_the_first(ways):
    for with_it, without in ((ONE, ONE_WITHOUT), (EACH, EACH_WITHOUT)):
        assert torch.equal(ways[with_it][:, 0], ways[without][:, 0])
        assert not torch.equal(ways[with_it][:, 1], ways[without][:, 1])
        assert torch.equal(ways[without][:, 0], ways[without][:, 2])


def test_a_seed_for_each_rank_leaves_rows_out_and_so_does_mixing(ways):
    for way in EACH, EACH_WITHOUT, MIXED:
        for rows in ways[way].flatten(0, 1):
            assert counts(rows).min() == 0 and counts(rows).max() > 1


def test_mixed_rows_come_as_often_in_each_run_and_in_each_ten_epochs(ways):
    for mixed, rows in zip(ways[MIXED], ways[ONE]):
        assert torch.equal(counts(mixed), counts(rows))
    rows = torch.arange(15).view(1, 15, 1, 1).expand(2, 15, 3, 2)
    mixed = who_sees_what.mix(rows)
    assert mixed.shape == rows.shape and not torch.equal(mixed[0], mixed[1])
    assert torch.equal(mixed[:, :10].flatten(1).sort()[0], rows[:, :10].flatten(1))
    assert torch.equal(mixed[:, 10:].flatten(1).sort()[0], rows[:, 10:].flatten(1))


def test_equal_deals_train_equal_networks_and_runs_differ():
    rows = torch.arange(24).view(1, 1, 1, 4, 6).expand(2, 2, 20, 4, 6)
    right = who_sees_what.train(rows, 24, after=(1, 20))
    assert {epochs: tuple(answers.shape) for epochs, answers in right.items()} == {
        1: (2, 2, 1797 - 24),
        20: (2, 2, 1797 - 24),
    }
    one, other = right[20]
    assert torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
    assert right[20].double().mean() > right[1].double().mean() + 0.2


def test_a_row_that_two_ranks_saw_is_cut_and_one_that_nobody_saw_is_dotted(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    who_sees_what.draw({"a way": [[0, 1], [1, 2]]}, 4)
    ax = plt.gca()
    try:
        boxes = [bar for bar in ax.patches if bar.get_height()]
        heights = [round(bar.get_height(), 2) for bar in boxes]
        assert heights == [0.7, 0.35, 0.35, 0.7, 0.7]
        assert [bar.get_fill() for bar in boxes] == [True] * 4 + [False]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == [
            "rank 0",
            "rank 1",
        ]
    finally:
        plt.close("all")


def test_the_table_has_a_line_for_each_way(capsys):
    who_sees_what.table(25, 4, after=(1, 2), runs=2, lr=0.1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "25 rows, 4 ranks, 2 runs, lr 0.1"
    assert len(lines) == 6
    assert lines[1].count("0 lower") == 2
