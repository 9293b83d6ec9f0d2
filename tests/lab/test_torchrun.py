"""Programs under torchrun: what they print, how they fail, that nothing stays behind."""

import os
import threading
import time

import pytest

from manual_dp.lab.torchrun import torchrun
from manual_dp.ranks import RankError, launch
from tests.support.launches import MARK, alive, until

LONG = 250  # seconds for torch to be imported once or twice on a busy machine


@pytest.fixture(autouse=True)
def nothing_is_left():
    launch._nursery.cache_clear()
    os.environ[MARK] = f"{os.getpid()} {time.time()}"
    yield
    launch._nursery.cache_clear()
    gone = until(lambda: alive() == [])
    left = alive()
    del os.environ[MARK]
    assert gone, left


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path
    return write


def test_every_rank_runs_the_program_with_its_number_and_the_options(program):
    path = program("import os, sys\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'],"
                   " os.environ['WORLD_SIZE'], os.environ['GLOO_SOCKET_IFNAME'],"
                   " *sys.argv[1:])")
    lines = torchrun(path, "--lr", 0.5, ranks=2, timeout=LONG)
    assert sorted(lines) == ["0 0 2 lo --lr 0.5", "1 1 2 lo --lr 0.5"]


def test_a_program_that_raises_is_named_with_its_own_error(program):
    path = program("import os, sys\nprint('a warning', file=sys.stderr)\n"
                   "if os.environ['RANK'] == '1':\n    raise ValueError('boom')")
    with pytest.raises(RuntimeError, match=r"program\.py failed: ValueError: boom$"):
        torchrun(path, ranks=2, timeout=LONG)


def started(folder):
    return lambda: (folder / "started").exists()


STAYS = """
import subprocess, time
from pathlib import Path
subprocess.Popen(["sleep", "200"], start_new_session=True)
Path(__file__).with_name("started").touch()
time.sleep(200)
"""


def test_a_program_that_hangs_is_ended_at_the_deadline_with_all_it_started(program):
    path, begin = program(STAYS), time.monotonic()
    with pytest.raises(RankError, match="still running after 12 s") as caught:
        torchrun(path, ranks=1, timeout=12)
    assert caught.value.kind == "hung"
    assert time.monotonic() - begin < 60


def test_an_interrupt_ends_the_program_with_all_it_started(interruptible, program):
    path = program(STAYS)

    def interrupt():
        if until(started(path.parent), LONG):
            time.sleep(0.5)
            os.kill(os.getpid(), 2)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        torchrun(path, ranks=1, timeout=LONG)
    thread.join()


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"no program nowhere\.py"):
        torchrun("nowhere.py", ranks=1)
