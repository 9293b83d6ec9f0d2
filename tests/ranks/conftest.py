"""For tests of ranks: a nursery for each file, and nothing left after each test."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import manual_dp
from manual_dp.ranks import launch, run_ranks
from tests.support.launches import MARK, alive, until

ROOT = str(Path(manual_dp.__file__).parents[1])


@pytest.fixture(scope="module")
def one_nursery_for_this_file():
    launch._nursery.cache_clear()
    os.environ[MARK] = f"{os.getpid()} {time.time()}"
    run_ranks(int, 1)
    yield
    launch._nursery.cache_clear()
    assert until(lambda: alive() == [])
    del os.environ[MARK]


@pytest.fixture
def nothing_is_left(one_nursery_for_this_file, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert until(lambda: alive() == [])
    assert list(tmp_path.rglob("manual_dp-*")) == []


@pytest.fixture
def start_python(tmp_path):
    """Return a function that starts a script in a folder of its own, and kill it later."""
    started = []

    def start(script, **options):
        folder = tmp_path / f"caller_{len(started)}"
        folder.mkdir()
        (folder / "script.py").write_text(script)
        started.append(subprocess.Popen(
            [sys.executable, "script.py"], cwd=folder, text=True,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": ROOT},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}))
        return started[-1], folder

    yield start
    for process in started:
        process.kill()
        process.communicate()
