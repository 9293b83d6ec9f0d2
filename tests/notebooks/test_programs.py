"""The programs that lessons run under torchrun: what a learner may take away works."""

import gc
import io
import os
import runpy
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.params import largest_difference
from manual_dp.ranks import run_ranks
from tests.support.loaded import PROGRAMS, loaded

PROGRAM = PROGRAMS / "train_ddp.py"
LONG = 200  # seconds for some Pythons to import torch on a busy machine


def train_ddp():
    """Return the program as a module; it is in no package."""
    return loaded(PROGRAM)


def test_two_ranks_that_are_stopped_and_go_on_end_where_one_ends_that_does_not(
    tmp_path,
):
    def run(ranks, epochs, name):
        (_, said), *_ = run_ranks(
            partial(trained, batch_size=96),
            ranks,
            PROGRAM,
            tmp_path / name,
            epochs,
            timeout=LONG,
        )
        return said.splitlines()

    one, first, then = run(1, 2, "one"), run(2, 1, "two"), run(2, 2, "two")
    assert [line.partition(":")[0] for line in one] == ["epoch 0", "epoch 1"]
    assert first + then == one  # losses and accuracies too
    states = [torch.load(tmp_path / name) for name in ("one", "two")]
    assert (
        largest_difference(*(list(state["model"].values()) for state in states)) < 1e-12
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def read(monkeypatch, *options, ranks=4):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", *options])
    return train_ddp().arguments()


def test_a_minibatch_that_cannot_be_dealt_out_equally_is_refused(monkeypatch, capsys):
    assert read(monkeypatch).batch_size == 96
    with pytest.raises(SystemExit):
        read(monkeypatch, "--batch-size", "98")
    assert "--batch-size 98 is not divisible by 4" in capsys.readouterr().err


def test_the_accuracy_counts_each_row_once_wherever_it_lies():
    sizes, generator = [6, 1, 0], torch.Generator().manual_seed(0)
    X = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    module = train_ddp()
    evaluate = module.evaluate

    def count():
        rank = dist.get_rank()
        return evaluate(nn.Identity(), X.split(sizes)[rank], y.split(sizes)[rank])

    right = sum(int(row.argmax() == label) for row, label in zip(X, y))
    assert run_ranks(count, 3) == [pytest.approx(right / 7)] * 3


def test_only_rank_0_writes_and_what_was_there_stays_until_it_is_whole(tmp_path):
    module = train_ddp()
    path = tmp_path / "checkpoint"
    path.write_text("old")

    def write():
        model = DistributedDataParallel(nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        written = []
        torch_save = torch.save
        torch.save = lambda state, name: (
            written.append((os.path.basename(name), path.read_text())),
            torch_save(state, name),
        )
        module.save(str(path), model, optimizer, 3, {"lr": "0.1"})
        dist.barrier()
        epoch = module.resume(str(path), model, optimizer, {"lr": "0.1", "newer": "1"})
        return written, epoch

    assert run_ranks(write, 2) == [([("checkpoint.new", "old")], 4), ([], 4)]


def mine(folder, *changes):
    """Write a copy of the program with another network, and return its path."""
    text = PROGRAM.read_text()
    for old, new in (
        ("nn.ReLU()", "nn.BatchNorm1d(32), nn.Dropout(0.5), nn.ReLU()"),
        *changes,
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "mine.py"
    path.write_text(text)
    return path


def trained(path, checkpoint, epochs=1, **others):
    """Train on this rank; return dropout's masks, and what is printed."""
    module, masks = loaded(path), []
    module.join, dist.destroy_process_group = lambda: torch.device("cpu"), lambda: None
    hook = nn.modules.module.register_module_forward_hook(
        lambda layer, args, out: (
            masks.append(out == 0)
            if isinstance(layer, nn.Dropout) and layer.training
            else None
        )
    )
    settings = {"lr": 0.1, "batch_size": 480, "float64": True} | others
    with hook, redirect_stdout(io.StringIO()) as out:
        module.train(Namespace(epochs=epochs, checkpoint=str(checkpoint), **settings))
    return masks, out.getvalue()


def test_each_rank_drops_its_own_units_and_a_stop_changes_nothing(tmp_path):
    path, whole, parts = mine(tmp_path), tmp_path / "whole", tmp_path / "parts"
    ranks = run_ranks(trained, 2, path, whole, 2, timeout=LONG)
    dropped = [mask for masks, _ in ranks for mask in masks]
    assert len(dropped) == 2 * 2 * 3
    assert not any(
        torch.equal(a, b) for i, a in enumerate(dropped) for b in dropped[:i]
    )
    first, then = (
        run_ranks(trained, 2, path, parts, epochs, timeout=LONG) for epochs in (1, 2)
    )
    assert first[0][1] + then[0][1] == ranks[0][1]  # losses and accuracies
    one, two = (torch.load(file)["model"] for file in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_printed_accuracy_is_that_of_the_saved_network(tmp_path):
    last_rows_alone = "BatchNorm1d(32)", "BatchNorm1d(32, momentum=1.0)"
    path, checkpoint = mine(tmp_path, last_rows_alone), tmp_path / "checkpoint"
    (_, said), _ = run_ranks(
        partial(trained, batch_size=24), 2, path, checkpoint, timeout=LONG
    )
    net = (
        nn.Sequential(
            nn.Linear(64, 32),
            nn.BatchNorm1d(32),
            nn.Dropout(0.5),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
        .double()
        .eval()
    )
    net.load_state_dict(torch.load(checkpoint)["model"])
    _, X, y = train_ddp().digits(torch.float64)
    accuracy = (net(X).argmax(1) == y).double().mean()
    assert said.endswith(f"accuracy {accuracy:.3f}\n")


@pytest.mark.parametrize(
    "changes, others, message",
    [
        ([], {"lr": 0.0}, "lr 0.1, not 0.0"),
        (
            [("momentum=0.9", "momentum=0.9, weight_decay=0.1")],
            {},
            "weight_decay 0, not 0.1",
        ),
    ],
)
def test_a_run_with_other_settings_ends_and_names_them(
    tmp_path, changes, others, message
):
    checkpoint = tmp_path / "checkpoint"

    def again(path):
        with pytest.raises(ValueError, match=f"checkpoint is of a run with {message}"):
            trained(path, checkpoint, 2, **others)

    run_ranks(trained, 1, mine(tmp_path), checkpoint, timeout=LONG)
    before = checkpoint.read_bytes()
    run_ranks(again, 1, mine(tmp_path, *changes), timeout=LONG)
    assert checkpoint.read_bytes() == before


def test_a_file_that_not_all_ranks_see_ends_the_run(tmp_path):
    path = mine(tmp_path)

    def alone():
        trained(path, tmp_path / "here")
        dist.barrier()
        with pytest.raises(ValueError, match=r"other epochs, next are \[1, 0\]"):
            trained(path, tmp_path / ("here", "elsewhere")[dist.get_rank()], 2)

    run_ranks(alone, 2, timeout=LONG)
    assert not (tmp_path / "elsewhere").exists()


def closing(path, *more):
    """Run a program as one rank; return how many DDPs live when it closes the group."""
    alive = []

    def close():
        alive.append(
            sum(type(thing) is DistributedDataParallel for thing in gc.get_objects())
        )

    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | dict.fromkeys(
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"
    )
    with (
        patch.dict(os.environ, ranks),
        redirect_stdout(io.StringIO()),
        patch.object(sys, "argv", [path.name, "--epochs", "1", *more]),
        patch.object(torch.cuda, "device_count", lambda: 0),
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group", close),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return alive


@pytest.mark.parametrize(
    "name, more",
    [
        ("ddp_first_try.py", []),
        ("train_ddp.py", []),
        ("train.py", ["--batch-size", "480"]),
        ("resnet_ddp.py", ["--rows", "8", "--batch-size", "8"]),
    ],
)
def test_a_program_closes_the_group_when_ddp_is_gone(name, more):
    # the last owner of a group waits for its threads; DDP waits with Python's lock held
    assert run_ranks(closing, 1, PROGRAMS / name, *more, timeout=LONG) == [[0]]


def test_the_program_needs_nothing_of_the_course():
    assert "manual_dp" not in PROGRAM.read_text()
