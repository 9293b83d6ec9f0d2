"""programs/train.py: the same steps on any number of ranks, stopped and gone on, too."""

import json
import os
import shutil
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Subset

from manual_dp.params import largest_difference
from manual_dp.ranks import CheckpointError, RankError, Ranks, load
from tests.support.loaded import PROGRAMS, loaded

WORDS = ["--float64", "--epochs", "1", "--batch-size", "48", "--lr", "0.05"]
STAY = {}  # ranks that are started once for all tests, by their number


def trained(words, stop, every):
    """Train as torchrun's rank would, in ranks that are there; return what it saw.

    stop: raise before this step, as if the rank had been killed. every: of so many
    digits take one; all of them make a run five times as long.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environ = {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    module, steps = loaded(PROGRAMS / "train.py"), []
    take_step, open_sets = module.train_step, module.open_sets

    def some(args):
        return [
            Subset(images, range(0, len(images), every)) for images in open_sets(args)
        ]

    def step(model, *args):
        if len(steps) == stop:
            raise KeyboardInterrupt("stopped")
        steps.append(float(take_step(model, *args)))
        module.net = model
        return torch.tensor(steps[-1], dtype=torch.float64)

    module.join, module.train_step = lambda: torch.device("cpu"), step
    module.open_sets = some
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


def on(ranks, *words, stop=None, every=6):
    if ranks not in STAY:
        STAY[ranks] = Ranks(ranks)
    stay = STAY[ranks]
    stay.push(words=[*map(str, words)], stop=stop, every=every)
    return stay.run(
        f"from {__name__} import trained\ntrained(words, stop, every)", timeout=150
    )


@pytest.mark.parametrize(
    "ranks, more",
    [
        (3, ["--accumulate", "4"]),
        (2, ["--method", "ddp-by-hand", "--accumulate", "2"]),
    ],
)
def test_every_number_of_ranks_and_micro_batches_takes_one_devices_steps(ranks, more):
    [(one, weights)] = on(1, *WORDS)
    assert len(one) == 5  # of 240 digits
    runs = on(ranks, *WORDS, *more)
    for mine in zip(one, *[steps for steps, _ in runs]):
        assert sum(mine[1:]) == pytest.approx(mine[0], rel=1e-12)
    for _, others in runs:
        assert largest_difference(others, weights) < 1e-12


def test_the_length_that_is_clipped_is_that_of_the_mean_over_ranks():
    [(plain, _)], [(one, weights)] = (
        on(1, *WORDS),
        on(1, *WORDS, "--clip", "0.05"),
    )
    runs = on(2, *WORDS, "--clip", "0.05")
    assert one[0] == plain[0] and one[1] > plain[1]  # a shorter step
    assert all(largest_difference(others, weights) < 1e-12 for _, others in runs)


def test_short_numbers_round_the_loss_and_leave_ranks_alike():
    words = WORDS[1:]
    [(plain, _)], runs = on(1, *words), on(2, *words, "--amp")
    first = sum(steps[0] for steps, _ in runs)
    assert first != plain[0] and first == pytest.approx(plain[0], rel=2**-8)
    assert all(map(torch.equal, runs[0][1], runs[1][1]))
    assert runs[0][1][0].dtype == torch.float32


def ended(path):
    state = load(path)
    return state["model"], state["history"]["loss"], state["epoch"], state["step"]


def test_a_run_that_is_stopped_ends_as_one_that_is_not(tmp_path):
    whole, cut, alone = (tmp_path / name for name in ("whole", "cut", "alone"))
    words = [*WORDS, "--every", "1", "--checkpoint"]
    on(3, *words, whole)
    on(3, *words, cut, stop=3)  # on two ranks, a sum has one order
    assert ended(cut)[2:] == (0, 3)
    shutil.copy(cut, alone)
    weights, loss, *place = ended(whole)
    for path, ranks, allowed in ((cut, 3, 0), (alone, 1, 1e-12)):
        on(ranks, *words, path)
        others, lost, *end = ended(path)
        assert place == end == [1, 0]
        assert largest_difference([*weights.values()], [*others.values()]) <= allowed
        assert lost == pytest.approx(loss, rel=1e-12)


def test_another_rate_is_not_gone_on_with_and_both_are_named(tmp_path):
    words = [*WORDS, "--checkpoint", tmp_path / "run"]
    on(2, *words)
    with pytest.raises(RankError, match="is of a run with lr 0.05, not 0.1") as error:
        on(2, *words, "--lr", "0.1")
    assert CheckpointError.__name__ in str(error.value)


def test_out_has_settings_no_place_of_this_machine_and_counts_each_row_once(tmp_path):
    # some seconds: with all digits, since these are what a run tells of
    places = "--out", tmp_path / "run.json", "--checkpoint"
    found = []
    for ranks in (1, 2):
        on(ranks, *WORDS, *places, tmp_path / f"{ranks}.pt", every=1)
        text = (tmp_path / "run.json").read_text()
        assert str(tmp_path) not in text
        found.append(json.loads(text))
        assert found[-1]["world_size"] == ranks and found[-1]["lr"] == 0.05
        assert found[-1]["of"] == 359 and len(found[-1]["loss"]) == 1
    one, two = found
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
