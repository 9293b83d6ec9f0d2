"""Programs under torchrun: what they print, how they fail, that nothing stays behind."""

import os
import tempfile
import threading
import time

import pytest

from course.lab.torchrun import at_once, torchrun
from manual_dp.ranks import RankError
from tests.support.launches import until

pytestmark = pytest.mark.usefixtures("nothing_is_left")

LONG = 250  # seconds for torch to be imported once or twice on a busy machine


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_every_rank_runs_the_program_with_its_number_and_the_options(
    program, tmp_path, monkeypatch, forked_torchrun
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = program(
        "import os, sys\nnames = 'RANK', 'LOCAL_RANK', 'WORLD_SIZE',"
        " 'GLOO_SOCKET_IFNAME'\n"
        "said = [*(os.environ[name] for name in names), *sys.argv[1:]]\n"
        "print(*said)\nfor i in range(300):\n    print(said[0], i)"
    )
    lines = torchrun(path, "--lr", 0.5, ranks=2, timeout=LONG)
    assert lines == [
        line
        for rank in "01"
        for line in [  # printed at once, and whole
            f"{rank} {rank} 2 lo --lr 0.5",
            *(f"{rank} {i}" for i in range(300)),
        ]
    ]
    assert os.listdir(tmp_path) == ["program.py"]


def test_what_another_rank_says_into_a_traceback_is_not_the_reason(
    program, monkeypatch
):
    # some seconds: torchrun as a new Python, which is what `torchrun` starts: only so
    # its last words, which say which rank failed first, come by its stderr
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook; heard from 3.13 on
    path = program("""
import os, sys, time
from pathlib import Path
begun, said = (Path(__file__).with_name(name) for name in ("begun", "said"))
if os.environ["RANK"] == "1":
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)
    begun.touch()
    while not said.exists():
        time.sleep(0.02)
    raise ValueError("boom")
while not begun.exists():
    time.sleep(0.02)
print("a warning", file=sys.stderr, flush=True)
said.touch()
time.sleep(200)
""")
    with pytest.raises(RuntimeError, match=r"program\.py failed: ValueError: boom$"):
        torchrun(path, ranks=2, timeout=LONG)


def test_several_run_at_once_and_each_one_s_lines_come_in_order(
    program, forked_torchrun, tmp_path
):
    # each waits for the other's file: one after the other would never end
    path = program(
        "import os, sys, time\nmine, other = sys.argv[1:]\n"
        "open(mine, 'w').close()\n"
        "while not os.path.exists(other):\n    time.sleep(0.1)\n"
        "name = os.path.basename(mine)\n"
        "print(name, os.environ['WORLD_SIZE'])"
    )
    a, b = tmp_path / "a", tmp_path / "b"
    assert at_once([(1, path, a, b), (2, path, b, a)], timeout=LONG) == [
        ["a 1"],
        ["b 2", "b 2"],
    ]


def test_of_several_the_one_that_fails_is_named(program, forked_torchrun, tmp_path):
    right = tmp_path / "right.py"
    right.write_text("print('right')")
    with pytest.raises(RuntimeError, match=r"program\.py failed: ValueError: boom$"):
        at_once([(1, right), (1, program("raise ValueError('boom')"))], timeout=LONG)


def started(folder):
    return lambda: (folder / "started").exists()


STAYS = """
import subprocess, time
from pathlib import Path
subprocess.Popen(["sleep", "200"], start_new_session=True)
Path(__file__).with_name("started").touch()
time.sleep(200)
"""


def test_a_program_that_hangs_is_ended_at_the_deadline_with_all_it_started(
    program, forked_torchrun
):
    # long enough for the ranks to have started what only the deadline ends
    path, begin = program(STAYS), time.monotonic()
    with pytest.raises(RankError, match="still running after 12 s") as caught:
        torchrun(path, ranks=1, timeout=12)
    assert caught.value.kind == "hung"
    assert time.monotonic() - begin < 60


def test_an_interrupt_ends_the_program_with_all_it_started(
    interruptible, forked_torchrun, program
):
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
