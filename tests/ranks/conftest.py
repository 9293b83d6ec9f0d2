"""For tests of ranks: nothing is left after each test; what tests of checkpoints share."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import manual_dp
from manual_dp.ranks import run_ranks
from tests.support.launches import alive, nursery, until

ROOT = str(Path(manual_dp.__file__).parents[1])


@pytest.fixture
def nothing_is_left(tmp_path, monkeypatch):
    nursery() or run_ranks(int, 1)  # no deadline here is for the import of torch
    before = alive()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert until(lambda: alive() <= before)
    assert list(tmp_path.rglob("manual_dp-*")) == []


@pytest.fixture
def start_python(tmp_path):
    """Return a function that starts a script in a folder of its own, and kill it later."""
    started = []

    def start(script, **options):
        folder = tmp_path / f"caller_{len(started)}"
        folder.mkdir()
        (folder / "script.py").write_text(script)
        started.append(
            subprocess.Popen(
                [sys.executable, "script.py"],
                cwd=folder,
                text=True,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": ROOT},
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
            )
        )
        return started[-1], folder

    yield start
    for process in started:
        process.kill()
        process.communicate()


# checkpoints


def same(a, b):
    """Return whether two states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pt"
