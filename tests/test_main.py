import importlib
import json
import os

import pytest

from manual_dp.__main__ import main, table
from manual_dp.files import fashion_mnist
from tests.support.commands import refuses

train_module = importlib.import_module("manual_dp.train")


# wrong arguments


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "the following arguments are required: COMMAND"),
        ("train --world-size 0", "--world-size: '0' is no whole number from 1 to 10^6"),
        ("train --world-size 1.5", "--world-size: '1.5' is no whole number"),
        ("train --world-size \u00b2", "--world-size: '\u00b2' is no whole"),
        ("train --epochs 1000001", "--epochs: '1000001' is no whole number"),
        ("train --batch-size 0", "--batch-size: '0' is no whole number"),
        ("train --lr fast", "--lr: 'fast' is not a finite number >= 0"),
        ("train --lr=-0.1", "--lr: '-0.1' is not a finite number >= 0"),
        ("train --lr inf", "--lr: 'inf' is not a finite number >= 0"),
        ("train --scale xavier", "--scale: 'xavier' is not a finite number >= 0"),
        ("train --seeds x", "--seeds: invalid int value: 'x'"),
        ("train --data mnist", "--data: invalid choice: 'mnist'"),
        ("train --out .", "--out: '.' is no file in an existing folder"),
        ("train --out no/such/folder/x.json", "is no file in an existing folder"),
        ("audit", "no script is named"),
        ("audit --steps 0 -- x.py", "--steps: '0' is no whole number"),
        ("audit -- no/such.py", "there is no script no/such.py"),
    ],
)
def test_a_wrong_argument_is_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(train_module, "train", lambda *_, **__: pytest.fail("trains"))
    line = refuses(main, capsys, *arguments.split())
    assert line.startswith("python -m manual_dp") and ": error: " in line
    assert message in line


def test_missing_files_are_one_line_that_helps(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(fashion_mnist, "SOURCE", "file:///no/such/folder")
    words = f"train --data fashion-mnist --data-dir {tmp_path}"
    line = refuses(main, capsys, *words.split())
    expected = f"python -m manual_dp: error: Fashion-MNIST is not in {tmp_path} "
    assert line.startswith(expected) and 'data="digits"' in line
    assert all(name in line for name in fashion_mnist.FILES)


# runs


def test_the_digits_train_on_one_device_and_on_two(capfd, tmp_path):
    # some seconds: only here the command trains, and shows no bar where nobody looks
    out = tmp_path / "digits.json"
    words = f"train --world-size 1 2 --epochs 1 --lr 0.05 --out {out}"
    assert main(words.split()) == 0
    printed, bar = capfd.readouterr()
    assert bar == ""
    assert [line.split()[:4] for line in printed.splitlines()[1:]] == [
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
        train_iter, _ = data
        shuffled = train_iter.batch_size, train_iter.generator.initial_seed()
        assert shuffled == (batch_size, seed)
        asked.append((seed, len(devices), lr, batch_size, num_epochs, scale))
        if len(asked) == fake.breaks_at:
            raise fake.error
        run = one_run(len(devices), seed)
        return {
            name: run[name] for name in ("world_size", "loss", "test_acc", "seconds")
        }

    fake.asked, fake.breaks_at, fake.error = asked, None, None
    monkeypatch.setattr(train_module, "train", fake)
    return fake


def test_every_rate_of_every_world_size_of_every_seed_runs(fake_runs, tmp_path):
    out = tmp_path / "grid.json"
    words = "train --world-size 1 4 --seeds 3 5 --lr 0.1 0.3 --epochs 2 --batch-size 8"
    main(f"{words} --per-device --scale 0.01 --out {out}".split())
    assert fake_runs.asked == [
        (seed, k, lr, 8 * k, 2, 0.01)
        for seed in (3, 5)
        for k in (1, 4)
        for lr in (0.1, 0.3)
    ]
    assert [
        (run["seed"], run["world_size"], run["lr"], run["batch_size"])
        for run in json.loads(out.read_text())["runs"]
    ] == [asked[:4] for asked in fake_runs.asked]


def test_the_books_experiment_is_the_default(fake_runs):
    main(["train"])
    assert fake_runs.asked == [(0, k, 0.2, 256, 10, "he") for k in (1, 2)]


def breaks_off(fake_runs, error, out):
    """Let the third of three runs raise; return the exit status."""
    fake_runs.breaks_at, fake_runs.error = 3, error
    with pytest.raises(SystemExit) as caught:
        main(f"train --world-size 1 2 4 --out {out}".split())
    kept = json.loads(out.read_text())["runs"]
    assert [run["world_size"] for run in kept] == [1, 2]
    return caught.value.code


def test_an_interruption_keeps_the_runs_that_finished(capsys, tmp_path, fake_runs):
    assert breaks_off(fake_runs, KeyboardInterrupt(), tmp_path / "out.json") == 130
    assert capsys.readouterr() == ("", "\ninterrupted; finished runs are kept\n")
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_interrupted_audit_has_kept_no_runs(capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("manual_dp.audit.command.audit_script", interrupted)
    with pytest.raises(SystemExit):
        main(["audit", "--", "train.py"])
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.parametrize("kind", [OSError, ValueError, ImportError, RuntimeError])
def test_an_error_is_one_line_and_keeps_them(capsys, tmp_path, fake_runs, kind):
    assert breaks_off(fake_runs, kind("diverged"), tmp_path / "out.json") == 2
    assert capsys.readouterr() == ("", "python -m manual_dp: error: diverged\n")
