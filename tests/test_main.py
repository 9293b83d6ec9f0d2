import importlib
import json
import os
import re

import pytest

from manual_dp.__main__ import main, table
from manual_dp.files import fashion_mnist
from tests.support.commands import refuses

train_module = importlib.import_module("manual_dp.train")
NAMES = list(fashion_mnist.FILES)


# wrong arguments


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["train", "--fly"], "unrecognized arguments: --fly"),
        (["train", "--world-size"], "--world-size: expected at least one argument"),
        (["train", "--world-size", "0"], "--world-size: '0' is no whole number from 1"),
        (["train", "--world-size", "2", "-1"], "--world-size: '-1' is no whole number"),
        (
            ["train", "--world-size", "2", "two"],
            "--world-size: 'two' is no whole number",
        ),
        (["train", "--world-size", "1.5"], "--world-size: '1.5' is no whole number"),
        (["train", "--world-size", "\u00b2"], "--world-size: '\u00b2' is no whole"),
        (["train", "--world-size", "9" * 30], "9' is no whole number from 1 to 10^6"),
        (["train", "--epochs", "1000001"], "--epochs: '1000001' is no whole number"),
        (["train", "--epochs", "0"], "--epochs: '0' is no whole number from 1 to 10^6"),
        (["train", "--batch-size", "0"], "--batch-size: '0' is no whole number"),
        (["train", "--batch-size", "many"], "--batch-size: 'many' is no whole number"),
        (["train", "--lr", "fast"], "--lr: 'fast' is not a finite number >= 0"),
        (["train", "--lr=-0.1"], "--lr: '-0.1' is not a finite number >= 0"),
        (["train", "--lr", "nan"], "--lr: 'nan' is not a finite number >= 0"),
        (["train", "--lr", "inf"], "--lr: 'inf' is not a finite number >= 0"),
        (
            ["train", "--scale", "xavier"],
            "--scale: 'xavier' is not a finite number >= 0",
        ),
        (["train", "--scale", "nan"], "--scale: 'nan' is not a finite number >= 0"),
        (["train", "--seeds", "x"], "--seeds: invalid int value: 'x'"),
        (["train", "--data", "mnist"], "--data: invalid choice: 'mnist'"),
        (["train", "--out", "."], "--out: '.' is no file in an existing folder"),
        (
            ["train", "--out", "no/such/folder/x.json"],
            "is no file in an existing folder",
        ),
        (["audit"], "the following arguments are required: -- SCRIPT.py"),
        (["audit", "--steps", "0", "--", "x.py"], "--steps: '0' is no whole number"),
        (["audit", "--", "no/such.py"], "there is no script no/such.py"),
        (["audit", "--", "torchrun", "x.py"], "there is no script torchrun"),
    ],
)
def test_a_wrong_argument_is_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(train_module, "train", lambda *_, **__: pytest.fail("trains"))
    line = refuses(main, capsys, *arguments)
    assert line.startswith("python -m manual_dp") and ": error: " in line
    assert message in line


def test_missing_files_are_one_line_that_helps(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(fashion_mnist, "SOURCE", "file:///no/such/folder")
    line = refuses(
        main,
        capsys,
        "train",
        "--data",
        "fashion-mnist",
        "--data-dir",
        str(tmp_path / "here"),
    )
    assert line.startswith("python -m manual_dp: error: Fashion-MNIST is not in ")
    assert all(name in line for name in NAMES) and 'data="digits"' in line


def test_a_damaged_file_is_one_line(capsys, tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(b"not this")
    line = refuses(
        main, capsys, "train", "--data", "fashion-mnist", "--data-dir", str(tmp_path)
    )
    assert f"{NAMES[0]} is damaged: 8 bytes" in line


def test_a_run_that_diverges_is_one_line(capsys):
    line = refuses(
        main, capsys, "train", "--world-size", "1", "--epochs", "1", "--lr", "1e300"
    )
    assert "the summed gradient on rank 0 is not finite" in line


# runs


def test_the_digits_train_on_one_device_and_on_two(capsys, tmp_path):
    out = tmp_path / "digits.json"
    status = main(
        [
            "train",
            "--world-size",
            "1",
            "2",
            "--epochs",
            "1",
            "--lr",
            "0.05",
            "--out",
            str(out),
        ]
    )
    assert status == 0
    printed = capsys.readouterr().out.splitlines()
    assert re.split("  +", printed[0]) == [
        "devices",
        "batch",
        "lr",
        "seed",
        "best acc",
        "last acc",
        "last loss",
        "sec/epoch",
    ]
    assert [line.split()[:4] for line in printed[1:]] == [
        ["1", "256", "0.05", "0"],
        ["2", "256", "0.05", "0"],
    ]
    written = json.loads(out.read_text())
    assert written["settings"] == {
        "data": "digits",
        "batch_size": 256,
        "lr": [0.05],
        "per_device": False,
        "epochs": 1,
        "scale": "he",
    }
    one, two = written["runs"]
    assert (one["world_size"], two["world_size"]) == (1, 2)
    # float32, and six steps: the runs have not parted yet
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert os.listdir(tmp_path) == ["digits.json"]


def one_run(world_size, seed, accs=(0.25, 0.5, 0.375), seconds=(1.0, 2.0, 3.0)):
    return {
        "seed": seed,
        "batch_size": 32 * world_size,
        "lr": 0.05,
        "world_size": world_size,
        "loss": [3.0, 2.0, 1.0],
        "test_acc": list(accs),
        "seconds": list(seconds),
    }


def test_the_table_by_hand():
    assert table([one_run(1, 0), one_run(16, 42, (1.0,), (12.345,))]).splitlines() == [
        "devices  batch      lr  seed  best acc  last acc  last loss  sec/epoch",
        "      1     32    0.05     0     0.500     0.375     1.0000       2.00",
        "     16    512    0.05    42     1.000     1.000     1.0000      12.35",
    ]


@pytest.fixture
def fake_runs(monkeypatch):
    """Put a quick fake in the place of `train`; `asked` says what was asked of it."""
    asked = []

    def fake(devices, batch_size, lr, num_epochs, data, seed, scale, verbose, progress):
        asked.append((len(devices), batch_size, lr, num_epochs, seed, scale))
        if len(asked) == fake.breaks_at:
            raise fake.error
        run = one_run(len(devices), seed)
        return {
            name: run[name] for name in ("world_size", "loss", "test_acc", "seconds")
        }

    fake.asked, fake.breaks_at, fake.error = asked, None, None
    monkeypatch.setattr(train_module, "train", fake)
    return fake


def test_every_seed_runs_on_every_world_size(capsys, fake_runs):
    assert (
        main(
            [
                "train",
                "--world-size",
                "1",
                "4",
                "--seeds",
                "3",
                "5",
                "--lr",
                "0.1",
                "--epochs",
                "2",
                "--batch-size",
                "8",
                "--scale",
                "0.01",
            ]
        )
        == 0
    )
    assert fake_runs.asked == [
        (world_size, 8, 0.1, 2, seed, 0.01) for seed in (3, 5) for world_size in (1, 4)
    ]
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [(line.split()[0], line.split()[3]) for line in lines] == [
        ("1", "3"),
        ("4", "3"),
        ("1", "5"),
        ("4", "5"),
    ]


def test_every_rate_runs_and_a_devices_rows_can_be_kept(fake_runs, tmp_path):
    out = tmp_path / "grid.json"
    assert (
        main(
            [
                "train",
                "--world-size",
                "1",
                "4",
                "--lr",
                "0.1",
                "0.3",
                "--epochs",
                "1",
                "--batch-size",
                "8",
                "--per-device",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert fake_runs.asked == [
        (k, 8 * k, lr, 1, 0, "he") for k in (1, 4) for lr in (0.1, 0.3)
    ]
    assert [
        (run["world_size"], run["batch_size"], run["lr"])
        for run in json.loads(out.read_text())["runs"]
    ] == [(1, 8, 0.1), (1, 8, 0.3), (4, 32, 0.1), (4, 32, 0.3)]


def test_the_books_experiment_is_the_default(fake_runs):
    main(["train"])
    assert fake_runs.asked == [(k, 256, 0.2, 10, 0, "he") for k in (1, 2)]


def runs_in(path):
    return [run["world_size"] for run in json.loads(path.read_text())["runs"]]


def test_the_file_grows_with_every_run(monkeypatch, tmp_path, fake_runs):
    out, seen = tmp_path / "out.json", []
    quick = train_module.train

    def watched(*args, **kwargs):
        seen.append(runs_in(out) if out.exists() else [])
        return quick(*args, **kwargs)

    monkeypatch.setattr(train_module, "train", watched)
    main(["train", "--world-size", "1", "2", "3", "--out", str(out)])
    assert seen == [[], [1], [1, 2]]
    assert runs_in(out) == [1, 2, 3]


def test_an_interruption_keeps_the_runs_that_finished(capsys, tmp_path, fake_runs):
    out = tmp_path / "out.json"
    fake_runs.breaks_at, fake_runs.error = 3, KeyboardInterrupt
    with pytest.raises(SystemExit) as caught:
        main(["train", "--world-size", "1", "2", "4", "--out", str(out)])
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "\ninterrupted; finished runs are kept\n")
    assert runs_in(out) == [1, 2]
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_error_keeps_the_runs_that_finished(capsys, tmp_path, fake_runs):
    out = tmp_path / "out.json"
    fake_runs.breaks_at, fake_runs.error = 2, ValueError("diverged")
    line = refuses(main, capsys, "train", "--world-size", "1", "2", "--out", str(out))
    assert line == "python -m manual_dp: error: diverged"
    assert runs_in(out) == [1]


def test_the_progress_bar_shows_nothing_where_nobody_looks(capfd):
    assert main(["train", "--world-size", "1", "--epochs", "1"]) == 0
    assert capfd.readouterr().err == ""
