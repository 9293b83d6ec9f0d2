"""The steps in which lesson 11's program grows: each does what the lesson says of it."""

from functools import cache

import torch
from programs import ddp_steps  # notebooks/programs


@cache
def printed(name, ranks):
    return ddp_steps.start(name, ranks)


def counts(lines):
    return [line.partition(", ")[2] for line in lines]


def test_the_first_try_does_all_the_work_on_each_rank():
    assert printed("ddp_first_try", 2) == 2 * printed("ddp_first_try", 1)


def test_ranks_with_rows_of_their_own_train_the_network_of_one():
    alone = printed("ddp_rows", 1)
    for n in (2, 3, 4):
        lines = printed("ddp_rows", n)
        assert counts(lines) == n * counts(alone)
        assert not set(lines) & set(alone)  # the losses are those of each rank's rows


def test_n_ranks_print_what_one_prints():
    for n in (2, 3, 4):
        assert printed("ddp_log", n) == printed("ddp_log", 1)
    assert counts(printed("ddp_log", 1)) == counts(printed("ddp_rows", 1))


def test_a_learners_evaluate_is_called_with_the_rows_of_its_rank():
    def evaluate(model, X, y):
        return torch.tensor(len(X) / 357)

    lines = ddp_steps.start("ddp_log", 2, evaluate=evaluate)
    assert counts(lines) == ["right 179 of 357"] * 2


def test_the_whole_program_gets_its_options_stops_and_goes_on(tmp_path):
    def run(ranks, epochs, name):
        options = "--float64", "--epochs", epochs, "--checkpoint", tmp_path / name
        return ddp_steps.start("train_ddp", ranks, *options)

    whole = run(1, 3, "one.pt")
    assert len(whole) == 3
    assert run(2, 1, "two.pt") == whole[:1]
    assert run(2, 3, "two.pt") == whole[1:]
    losses = [line.partition(", ")[0] for line in whole]
    assert losses[:2] == [line.partition(", ")[0] for line in printed("ddp_log", 1)]


def test_what_is_shown_is_the_program_without_words_for_ruff():
    text = ddp_steps.read("ddp_first_try")
    assert text.startswith("import torch\n") and "noqa" not in text
    assert text.count("# new") == 4


def test_the_changes_lead_from_one_program_to_the_next():
    for before, after in (
        ("ddp_first_try", "ddp_rows"),
        ("ddp_rows", "ddp_log"),
    ):
        old, new = (ddp_steps.read(name).splitlines() for name in (before, after))
        shown = ddp_steps.changes(before, after).splitlines()
        gone = [line[1:] for line in shown if line.startswith("-")]
        come = [line[1:] for line in shown if line.startswith("+")]
        assert sorted(old + come) == sorted(new + gone)
        assert max(map(len, shown)) <= 78
