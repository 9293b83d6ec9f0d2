"""Nothing is left behind, whoever dies, and whatever ranks have started."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch import launch, processes
from manual_dp.ranks.launch.nursery import LOOKS, _state
from tests.support.launches import LATE, SOON, alive, error_of, nursery, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_no_rank_outlives_the_process_that_watches_it(number, tmp_path, monkeypatch):
    # 4 s until we give up a warden that hangs; only here does one die before its ranks
    def kill(folder, number):
        Path(folder, f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getppid(), number)
        time.sleep(50)

    monkeypatch.setattr(launch, "LATE", 0.2)
    error = error_of(kill, tmp_path, number, timeout=4)
    assert re.fullmatch(
        r"the process that watches the ranks has died or hangs \(\w+\); the ranks "
        "were ended. Run this again: it starts new ranks.",
        str(error),
    )
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2 and until(lambda: not any(map(psutil.pid_exists, pids)))
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_processes_that_a_rank_started_are_gone(tmp_path):
    def start(folder):
        plain = subprocess.Popen(["sleep", "50"])
        alone = subprocess.Popen(["sleep", "50"], start_new_session=True)
        # two forks and a session of its own: a daemon
        daemon = f"(setsid sh -c 'echo $$ > {folder}/daemon; exec sleep 50' &)"
        subprocess.run(["sh", "-c", daemon])
        while not Path(folder, "daemon").exists():
            time.sleep(0.01)
        return [plain.pid, alone.pid]

    [pids] = run_ranks(start, 1, tmp_path, timeout=SOON)
    pids.append(int((tmp_path / "daemon").read_text()))
    assert not any(map(psutil.pid_exists, pids))


# Two callers, which end in turn; a fork has the other's nursery. No stdin, stdout or
# stderr, and many open files. Each has ranks that stay, idle and busy, what these have
# started, and three launches.
CALLERS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
files = [open("/dev/null") for _ in range(1100)]
assert files[0].fileno() == 0

import os, signal, subprocess, tempfile, threading, time
import torch, torch.distributed as dist
from manual_dp.ranks import Ranks, run_ranks
from manual_dp.ranks.launch.launch import borrow_nursery, lend_nursery

# what a shell starts in the background ignores Ctrl-C, and so do its children
signal.signal(signal.SIGINT, signal.default_int_handler)

def note(what, pid):
    open(f"{what}-{pid}.pid", "w").write(str(pid))

def stuck(how):
    note(how, os.getpid())
    if how == "loop":
        while True: pass
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.recv(torch.zeros(1), 1 - dist.get_rank())

def get_stuck_in_many_ways():
    idle, busy = Ranks(2), Ranks(2)
    for ranks in idle, busy:
        ranks.push(note=note)
        ranks.run("import os, subprocess; note('live', os.getpid()); "
                  "note('sleep', subprocess.Popen(['sleep', '500']).pid)")
    copy = os.fork()
    if copy == 0:  # it stays, and does not hold the ranks
        time.sleep(500)
        os._exit(0)
    open("copy", "w").write(str(copy))
    threading.Thread(target=busy.run, args=("import time; time.sleep(500)",),
                     kwargs={"timeout": 500}, daemon=True).start()
    for how in "gloo", "stop", "loop":
        threading.Thread(target=run_ranks, args=(stuck, 2, how),
                         kwargs={"timeout": 500}).start()
    return idle, busy

nursery = lend_nursery()
os.mkdir("fork")
fork = os.fork()
if fork == 0:
    borrow_nursery(nursery)
    os.chdir("fork")
    open("caller", "w").write(str(os.getpid()))
    tempfile.tempdir = os.getcwd()
    try:
        run_ranks(stuck, 2, "gloo", timeout=500)
    except KeyboardInterrupt:
        open("interrupted", "w").close()
        subprocess.run("rm *.pid", shell=True)
    open("next", "w").write(str(run_ranks(dist.get_rank, 2)))
    kept = get_stuck_in_many_ways()
    time.sleep(500)
kept = get_stuck_in_many_ways()
os.waitpid(fork, 0)
time.sleep(500)
"""


def pids_in(folder, count):
    """Wait until so many processes' pids are written down; return these."""

    def written():
        return [path for path in folder.glob("*.pid") if path.read_text()]

    assert until(lambda: len(written()) == count, 240)
    time.sleep(0.1)  # now they are stuck
    return [int(path.read_text()) for path in written()]


def ends_with_all_that_it_started(process, number, folder):
    """Send a signal to a process that is stuck in many ways; see what is left."""
    pids = pids_in(folder, 6 + 8)
    assert len(list(folder.glob("manual_dp-*"))) == 5
    copy = psutil.Process(int((folder / "copy").read_text()))
    process.send_signal(number)
    process.wait(LATE)
    assert until(lambda: not any(map(psutil.pid_exists, pids)))
    assert until(lambda: list(folder.glob("manual_dp-*")) == [])
    copy.kill()


def test_a_caller_that_is_interrupted_terminated_or_killed_leaves_no_rank(start_python):
    # 10 s: only here does a caller end, with ranks of all kinds that are stuck
    killed, folder = start_python(CALLERS, preexec_fn=lambda: os.closerange(0, 3))
    pids = pids_in(folder / "fork", 2)
    terminated = psutil.Process(int((folder / "fork" / "caller").read_text()))
    terminated.send_signal(signal.SIGINT)
    # the ranks would stay for minutes
    assert until((folder / "fork" / "interrupted").exists)
    assert not any(map(psutil.pid_exists, pids))
    assert until(lambda: (folder / "fork" / "copy").exists(), 240)
    assert (folder / "fork" / "next").read_text() == "[0, 1]"  # the next call works
    ends_with_all_that_it_started(terminated, signal.SIGTERM, folder / "fork")
    ends_with_all_that_it_started(killed, signal.SIGKILL, folder)
    assert until(lambda: not alive())  # a nursery ends when it has done an import


def test_a_launch_inside_a_rank_leaves_nothing_either(tmp_path):
    def inner(folder):
        Path(folder, str(dist.get_rank())).touch()
        time.sleep(200)

    def outer(folder):
        tempfile.tempdir = folder
        results = run_ranks(dist.get_rank, 2)
        threading.Thread(target=run_ranks, args=(inner, 2, folder)).start()
        while not (Path(folder, "0").exists() and Path(folder, "1").exists()):
            time.sleep(0.01)
        sys.exit(str(results))

    # it starts a nursery of its own, which imports torch
    error = error_of(outer, str(tmp_path), world_size=1, timeout=100)
    assert (str(error), error.details) == ("rank 0 exited with code 1", "[0, 1]\n")


def test_asking_the_nursery_for_gpus_opens_none():
    run_ranks(int, 1)
    environment = psutil.Process(nursery().pid).environ()
    # a GPU that was opened before the fork is lost to the ranks
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


@pytest.mark.parametrize(
    "states, said, looks",
    [("RRS", "S", 3), ("S", "S", 1), ("T", "T", 1), ("R" * 30, "R", LOOKS)],
)
def test_a_rank_that_asks_again_and_again_does_not_run(
    states, said, looks, monkeypatch
):
    asked = iter(states)
    monkeypatch.setattr(processes, "state_and_parent", lambda pid: (next(asked), 1))
    assert _state(1) == said and len(states) - len(list(asked)) == looks
