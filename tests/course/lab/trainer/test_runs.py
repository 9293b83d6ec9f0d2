"""Whole runs through the command line, on tiny data; and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from course.lab.trainer import epochs, runs
from course.lab.trainer.command import BY_HAND
from manual_dp.__main__ import main
from manual_dp.models.cifar import image_sets

ROOT = Path(__file__).parents[3]
TINY = ["--epochs", "1", "--batch-size", "480", "--lr", "0.05"]


def refuses(capsys, *arguments):
    """Return the line that the command prints when it refuses."""
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == ""
    assert "Traceback" not in err
    return err.splitlines()[-1]


@pytest.mark.parametrize("arguments, message", [
    (["--model", "resnet34"], "--model: invalid choice: 'resnet34'"),
    (["--stem", "small"], "--stem: invalid choice: 'small'"),
    (["--method", "dp"], "--method: invalid choice: 'dp'"),
    (["--model", "resnet18", "--data", "digits"],
     "--model resnet18 trains on stand-in or cifar10, not on digits"),
    (["--data", "cifar10"], "--model lenet trains on digits or fashion-mnist, not on ci"),
    (["--method", "ddp", "--data", "stand-in"],
     "--model lenet trains on digits or fashion-mnist, not on stand-in"),
    (["--model", "resnet18", "--method", BY_HAND], "--method by-hand trains LeNet, and"),
    (["--method", BY_HAND, "ddp"], "--method by-hand trains LeNet, and alone"),
    (["--amp"], "--amp is not for --method by-hand; take one of dataparallel, ddp, "),
    (["--accumulate", "2"], "--accumulate is not for --method by-hand"),
    (["--go-on"], "--go-on is not for --method by-hand"),
    (["--method", "ddp", "--scale", "0.01"], "--scale is for --method by-hand"),
    (["--method", "ddp", "--rows", "9"], "--model lenet takes all of digits"),
    (["--method", "ddp", "--batch-size", "9"],
     "--batch-size 9 must be divisible by ranks times --accumulate, 2 x 1"),
    (["--method", "ddp", "--batch-size", "12", "--accumulate", "4"],
     "--batch-size 12 must be divisible by ranks times --accumulate, 2 x 4"),
    (["--method", "ddp", "--batch-size", "1440"],
     "--batch-size 1440 is more than the 1438 images to train with"),
    (["--model", "resnet50", "--batch-size", "8", "--accumulate", "4"],
     "one row at a time gives torchvision's stem nothing to normalise"),
    (["--model", "resnet18", "--rows", "2000"],
     "rows must be a whole number from 1 to 1438, the images that are there, got 2000"),
])
def test_what_does_not_go_together_is_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(runs, "run_ranks", lambda *_, **__: pytest.fail("trains"))
    assert message in refuses(capsys, *arguments)


def test_missing_files_are_one_line_before_a_rank_starts(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runs, "run_ranks", lambda *_, **__: pytest.fail("trains"))
    monkeypatch.setattr(runs.cifar10, "fetch", runs.cifar10.sets)  # no network
    line = refuses(capsys, "--model", "resnet18", "--data", "cifar10", "--data-dir",
                   str(tmp_path))
    assert f"error: CIFAR-10 is not in {tmp_path}. Put the folder " in line


def test_a_file_of_another_command_is_not_gone_on_with(capsys, tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"rows": 1}')
    line = refuses(capsys, "--method", "ddp", "--go-on", "--out", str(path))
    assert "other.json holds no runs of this command" in line


def test_every_method_and_number_of_ranks_trains_the_same_network(capsys, tmp_path):
    out = tmp_path / "out.json"
    arguments = ["train", "--method", "dataparallel", "ddp", "ddp-by-hand", "--world-size",
                 "1", "2", "--accumulate", "2", *TINY, "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed[1:]] == [
        ["lenet", method, ranks] for method in ("dataparallel", "ddp", "ddp-by-hand")
        for ranks in "12"]
    written = json.loads(out.read_text())
    first, *others = written["runs"]
    assert (first["rows"], first["of"], first["batch_size"]) == (1438, 359, 480)
    for run in others:  # float32, two steps: they have not parted
        assert run["loss"] == pytest.approx(first["loss"], rel=1e-3)
        assert abs(run["right"][0] - first["right"][0]) <= 2
    assert all(0 < part for run in written["runs"] for part in run["seconds"].values())
    # the same command again: nothing is left to do
    assert main([*arguments, "--go-on"]) == 0
    again = json.loads(out.read_text())
    assert (again["runs"], again["summary"]) == (written["runs"], written["summary"])


def test_a_resnet_trains_on_images_in_folders_in_mixed_precision(tmp_path, capsys):
    from PIL import Image

    from manual_dp.files.cifar10 import CLASSES
    train, _ = image_sets("stand-in")
    for part in ("train", "test"):
        for row in range(20):
            X, y = train[row]
            folder = tmp_path / part / CLASSES[row % 10]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = ((X + 1) * 127).to(torch.uint8).permute(1, 2, 0).contiguous()
            Image.frombytes("RGB", (32, 32), bytes(pixels.flatten().tolist())).save(
                folder / f"{row:04d}.jpg")
    out = tmp_path / "out.json"
    assert main(["train", "--model", "resnet18", "--data", "cifar10", "--data-dir",
                 str(tmp_path), "--rows", "16", "--test-rows", "9", "--world-size", "2",
                 "--amp", "--clip", "1", "--batch-size", "8", "--epochs", "1",
                 "--out", str(out)]) == 0
    run, = json.loads(out.read_text())["runs"]
    assert (run["form"], run["method"], run["of"]) == ("images", "ddp-by-hand", 9)
    assert str(tmp_path) not in out.read_text()
    assert run["steps"] == 1 and run["loss"][0] > 0


def test_a_run_that_diverges_is_one_line(capsys):
    line = refuses(capsys, "--method", "ddp", "--world-size", "1", *TINY[:-1], "1e30")
    assert "the training loss is" in line and "try a smaller rate" in line


@pytest.fixture
def plan():
    return {"model": "lenet", "data": "digits", "data_dir": None, "rows": None,
            "test_rows": None, "seed": 3, "batch_size": 12, "accumulate": 2, "stem": None}


def test_ranks_share_each_minibatch_and_every_row_is_seen_once(monkeypatch, plan):
    monkeypatch.setattr(epochs.dist, "get_world_size", lambda: 3)
    images = [(torch.tensor([float(row)]), row) for row in range(26)]
    seen = []
    for rank in range(3):
        monkeypatch.setattr(epochs.dist, "get_rank", lambda rank=rank: rank)
        seen.append([[y.tolist() for _, y in parts] for parts in epochs.minibatches(
            plan, images, 1, torch.device("cpu"))])
    assert [[len(part) for part in parts] for rank in seen for parts in rank] == [
        [2, 2]] * 6
    rows = [row for rank in seen for parts in rank for part in parts for row in part]
    assert len(set(rows)) == 24  # two of 26 fill no minibatch in this epoch
    monkeypatch.setattr(epochs.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(epochs.dist, "get_rank", lambda: 0)
    one = [y.tolist() for parts in epochs.minibatches(
        plan | {"accumulate": 1}, images, 1, torch.device("cpu")) for _, y in parts]
    assert [sorted(minibatch) for minibatch in one] == [
        sorted(row for rank in seen for part in rank[step] for row in part)
        for step in range(2)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc")
def test_an_interrupt_ends_the_ranks_and_keeps_what_is_finished(tmp_path, interruptible):
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "manual_dp", "train", "--method", "ddp", "--world-size",
         "1", "2", "--epochs", "1", "--batch-size", "480", "--seeds",
         *map(str, range(500)), "--out", str(out)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 300
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err
    assert "interrupted; finished runs are kept" in err
    assert json.loads(out.read_text())["runs"][0]["method"] == "ddp"
    gone, left = psutil.wait_procs(ranks, timeout=60)
    assert ranks and left == []
