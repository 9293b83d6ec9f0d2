"""programs/train.py: the same steps on any number of ranks, stopped and gone on, too."""

import json
import os
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from manual_dp.params import largest_difference
from manual_dp.ranks import CheckpointError, RankError, Ranks, load
from tests.support.loaded import PROGRAMS, loaded

ALL_DIGITS = ["--float64", "--epochs", "1", "--batch-size", "240", "--lr", "0.05"]
STAY = {}  # ranks that are started once for all tests, by their number


def trained(words, stop=None):
    """Train as torchrun's rank would, in ranks that are there; return what it saw.

    stop: raise before this step, as if the rank had been killed.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environ = {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    module, steps = loaded(PROGRAMS / "train.py"), []
    take_step = module.train_step

    def step(model, *args):
        if len(steps) == stop:
            raise KeyboardInterrupt("stopped")
        steps.append(float(take_step(model, *args)))
        module.net = model
        return torch.tensor(steps[-1], dtype=torch.float64)

    module.join, module.train_step = lambda: torch.device("cpu"), step
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.multiple(
            sys, argv=["train.py", *map(str, words)], path=[str(PROGRAMS), *sys.path]
        ),
    ):
        args = module.arguments()
        if stop is None:
            module.train(args)
        else:
            with pytest.raises(KeyboardInterrupt):
                module.train(args)
    return steps, [p.detach() for p in module.net.parameters()]


@pytest.fixture(autouse=True, scope="module")
def no_rank_is_left():
    yield
    while STAY:
        STAY.popitem()[1].close()


def on(ranks, *words, stop=None):
    if ranks not in STAY:
        STAY[ranks] = Ranks(ranks)
    stay = STAY[ranks]
    stay.push(words=[*map(str, words)], stop=stop)
    return stay.run(
        f"from {__name__} import trained\ntrained(words, stop)", timeout=150
    )


@pytest.mark.parametrize(
    "ranks, more",
    [
        (3, ["--accumulate", "4"]),
        (2, ["--method", "ddp-by-hand", "--accumulate", "2"]),
    ],
)
def test_every_number_of_ranks_and_micro_batches_takes_one_devices_steps(ranks, more):
    [(one, weights)] = on(1, *ALL_DIGITS)
    assert len(one) == 5  # of 1,438 digits
    runs = on(ranks, *ALL_DIGITS, *more)
    for mine in zip(one, *[steps for steps, _ in runs]):
        assert sum(mine[1:]) == pytest.approx(mine[0], rel=1e-12)
    for _, others in runs:
        assert largest_difference(others, weights) < 1e-12


def test_the_length_that_is_clipped_is_that_of_the_mean_over_ranks():
    [(plain, _)], [(one, weights)] = (
        on(1, *ALL_DIGITS),
        on(1, *ALL_DIGITS, "--clip", "0.05"),
    )
    runs = on(2, *ALL_DIGITS, "--clip", "0.05")
    assert one[0] == plain[0] and one[1] > plain[1]  # a shorter step
    assert all(largest_difference(others, weights) < 1e-12 for _, others in runs)


def test_short_numbers_round_the_loss_and_leave_ranks_alike():
    words = ALL_DIGITS[1:]
    [(plain, _)], runs = on(1, *words), on(2, *words, "--amp")
    first = sum(steps[0] for steps, _ in runs)
    assert first != plain[0] and first == pytest.approx(plain[0], rel=2**-8)
    assert all(map(torch.equal, runs[0][1], runs[1][1]))
    assert runs[0][1][0].dtype == torch.float32


def ended(path):
    state = load(path)
    return state["model"], state["history"]["loss"], state["epoch"], state["step"]


@pytest.mark.parametrize("before, after, exact", [(2, 2, True), (2, 1, False)])
def test_a_run_that_is_stopped_ends_as_one_that_is_not(tmp_path, before, after, exact):
    words = [*ALL_DIGITS, "--every", "1", "--checkpoint"]
    on(before, *words, tmp_path / "whole")
    on(before, *words, tmp_path / "cut", stop=3)
    assert ended(tmp_path / "cut")[2:] == (0, 3)
    on(after, *words, tmp_path / "cut")
    (weights, loss, *place), (others, lost, *end) = map(
        ended, [tmp_path / "whole", tmp_path / "cut"]
    )
    assert place == end == [1, 0]
    far = largest_difference([*weights.values()], [*others.values()])
    assert far == 0 if exact else far < 1e-12
    assert lost == pytest.approx(loss, rel=1e-12)


def test_another_rate_is_not_gone_on_with_and_both_are_named(tmp_path):
    words = [*ALL_DIGITS, "--checkpoint", tmp_path / "run"]
    on(2, *words)
    with pytest.raises(RankError, match="is of a run with lr 0.05, not 0.1") as error:
        on(2, *words, "--lr", "0.1")
    assert CheckpointError.__name__ in str(error.value)


def test_the_file_of_out_has_settings_and_history_and_no_place_of_this_machine(
    tmp_path,
):
    on(2, *ALL_DIGITS, "--out", tmp_path / "run.json", "--checkpoint", tmp_path / "run")
    text = (tmp_path / "run.json").read_text()
    found = json.loads(text)
    assert found["world_size"] == 2 and found["lr"] == 0.05 and found["of"] == 359
    assert len(found["loss"]) == len(found["right"]) == 1
    assert str(tmp_path) not in text


def test_every_row_of_the_test_counts_once(tmp_path):
    on(1, *ALL_DIGITS, "--out", tmp_path / "one")
    on(2, *ALL_DIGITS, "--out", tmp_path / "two")
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert one["right"] == two["right"] and one["right"][0] > 150


def test_a_minibatch_that_the_ranks_cannot_divide_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "98"])
    with pytest.raises(SystemExit):
        loaded(PROGRAMS / "train.py").arguments()
    assert (
        "--batch-size 98 is not divisible by ranks times --accumulate, 4"
        in capsys.readouterr().err
    )
