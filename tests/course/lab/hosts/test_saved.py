"""How far a run is, by its checkpoint; nobody waits for a run that has ended."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from course.lab.hosts import saved, until_saved
from manual_dp.ranks import save


def test_what_a_run_saved_is_read_and_nothing_before_it_saves(tmp_path):
    assert saved(tmp_path / "run.pt") is None
    save(tmp_path / "run.pt", {"epoch": 0, "step": 3})
    assert saved(tmp_path / "run.pt") == {"epoch": 0, "step": 3}


@pytest.fixture
def running():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


@pytest.mark.parametrize("epoch, step", [(0, 4), (0, 5), (1, 0)])
def test_it_waits_for_the_step_or_a_later_one(tmp_path, running, epoch, step):
    path, seen = tmp_path / "run.pt", []
    save(path, {"epoch": 0, "step": 3})
    hosts = SimpleNamespace(running=[running])
    waits = threading.Thread(target=lambda: seen.append(until_saved(path, 4, hosts)))
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    save(path, {"epoch": epoch, "step": step})
    waits.join(60)
    assert seen == [True]


def test_a_run_that_has_ended_is_not_waited_for(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    hosts = SimpleNamespace(running=[ended])
    assert until_saved(tmp_path / "run.pt", 1, hosts) is False
