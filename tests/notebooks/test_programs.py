"""The programs that lessons run under torchrun: what a learner may take away works."""

import io
import os
import sys
from contextlib import redirect_stdout

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from manual_dp.lab.torchrun import torchrun
from manual_dp.params import largest_difference
from manual_dp.ranks import run_ranks
from tests.support.loaded import PROGRAMS, loaded

PROGRAM = PROGRAMS / "train_ddp.py"
LONG = 200  # seconds for some Pythons to import torch on a busy machine


def train_ddp():
    """Return the program as a module; it is in no package."""
    return loaded(PROGRAM)


def run(ranks, epochs, checkpoint):
    return torchrun(PROGRAM, "--float64", "--epochs", epochs, "--checkpoint", checkpoint,
                    ranks=ranks, timeout=LONG)


def test_two_ranks_that_are_stopped_and_go_on_end_where_one_ends_that_does_not(tmp_path):
    one = run(1, 2, tmp_path / "one")
    first, then = run(2, 1, tmp_path / "two"), run(2, 2, tmp_path / "two")
    assert [line.partition(":")[0] for line in one] == ["epoch 0", "epoch 1"]
    assert first + then == one  # losses and accuracies too
    states = [torch.load(tmp_path / name) for name in ("one", "two")]
    assert largest_difference(*(list(state["model"].values()) for state in states)) < 1e-12
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


@pytest.mark.parametrize("sizes", [[3, 4], [7, 0], [1, 5, 1]])
def test_the_accuracy_counts_each_row_once_wherever_it_lies(sizes):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    module = train_ddp()
    evaluate = module.evaluate

    def count():
        rank = dist.get_rank()
        return evaluate(nn.Identity(), X.split(sizes)[rank], y.split(sizes)[rank])

    right = sum(int(row.argmax() == label) for row, label in zip(X, y))
    assert run_ranks(count, len(sizes)) == [pytest.approx(right / 7)] * len(sizes)


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
            torch_save(state, name))
        module.save(str(path), model, optimizer, 3)
        dist.barrier()
        epoch = module.resume(str(path), model, optimizer)
        return written, epoch

    assert run_ranks(write, 2) == [([("checkpoint.new", "old")], 4), ([], 4)]


def test_no_file_means_epoch_0(tmp_path):
    resume = train_ddp().resume
    assert resume(None, None, None) == resume(str(tmp_path / "none"), None, None) == 0


def test_the_program_needs_nothing_of_the_course():
    assert "manual_dp" not in PROGRAM.read_text()


@pytest.mark.parametrize("bug, said", [
    ("none", "clean"), ("bare", "not-synchronised"), ("no sampler", "rows-same"),
    ("sum", "losses count 8 times in")])
def test_two_lines_say_what_can_be_heard_in_a_script(bug, said):
    train = loaded(PROGRAMS / "watched.py").train
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.rand(96, 6, generator=generator),
                         torch.randint(3, (96,), generator=generator))

    def in_a_rank():
        with redirect_stdout(io.StringIO()) as out:
            train(data, bug)
        return out.getvalue()

    report, nothing = run_ranks(in_a_rank, 2)
    assert said in report and nothing == ""
