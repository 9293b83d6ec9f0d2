"""Processes: exit codes, descendants, and that nothing stays."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from manual_dp.ranks.launch import processes
from tests.support.launches import until

PAGE = Path(processes.__file__)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
# in a process of its own, without any package: no file but this one is needed
SCRIPT = """
import importlib.util, json, os, signal, subprocess, sys, time
spec = importlib.util.spec_from_file_location("processes", sys.argv[1])
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)
def fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid
def until(condition):
    end = time.monotonic() + 40
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return holds
def none_is_left():
    try:
        return os.waitpid(-1, os.WNOHANG) and False
    except ChildProcessError:
        return True
"""


def alone(body):
    """Run `body` in a Python that has the file alone; return what it put in `found`."""
    script = SCRIPT + textwrap.dedent(body) + "\nprint(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(PAGE)],
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def child():
    """Return a function that starts a process, and end it later."""
    started = []

    def start(*command, **options):
        started.append(subprocess.Popen(command, **options))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_needs_no_torch_and_nothing_of_the_course():
    assert (
        alone(
            "found = [name for name in sys.modules "
            "if name.startswith(('torch', 'manual_dp', 'psutil'))]"
        )
        == []
    )


@pytest.mark.parametrize(
    "how, code",
    [
        ("lambda: os._exit(77)", 77),
        ("lambda: os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_status_of_a_child_is_seen_and_left_to_be_reaped(how, code):
    assert alone(f"""
        reading, writing = os.pipe()
        pid = fork(lambda: os.read(reading, 1) and ({how})())
        found = [processes.exit_code(pid)]
        os.write(writing, b"+")
        until(lambda: processes.exit_code(pid) is not None)
        found += [processes.exit_code(pid), os.waitpid(pid, 0)[0] == pid]
        """) == [None, code, True]


def test_where_there_is_no_waitid_a_child_is_reaped_as_it_is_seen():
    # macOS before Python 3.13
    assert alone("""
        del os.waitid
        reading, writing = os.pipe()
        pid = fork(lambda: os.read(reading, 1) and os._exit(7))
        found, codes = [processes.exit_code(pid)], []
        os.write(writing, b"+")
        until(lambda: codes.append(processes.exit_code(pid)) or codes[-1] is not None)
        found += [codes[-1], none_is_left()]
        """) == [None, 7, True]


@pytest.mark.parametrize("number, name", [(11, "SIGSEGV"), (999, "signal 999")])
def test_a_signal_has_a_name_or_its_number(number, name):
    assert processes.signal_name(number) == name


@LINUX
def test_a_process_is_looked_at(child):
    pid = child("sleep", "50")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: processes.state_and_parent(pid)[0] == "T")
    assert processes.state_and_parent(pid) == ("T", os.getpid())
    assert processes.state_and_parent(os.getpid()) == ("R", os.getppid())


@LINUX
def test_a_name_with_brackets_and_spaces_does_not_mislead(child, tmp_path):
    (tmp_path / "a) T 1 (b").symlink_to("/bin/sleep")
    pid = child(tmp_path / "a) T 1 (b", "50")
    until(lambda: processes.state_and_parent(pid)[0] == "S")
    assert processes.state_and_parent(pid) == ("S", os.getpid())


def test_what_is_gone_has_no_state_and_no_parent(child):
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.state_and_parent(process.pid) == ("?", 0)


@LINUX
def test_it_is_known_for_how_long_a_process_has_computed(child):
    busy, idle = child("sh", "-c", "while true; do true; done"), child("sleep", "50")
    until(lambda: processes.cpu_ticks(busy) >= 20, 60)
    assert processes.cpu_ticks(busy) >= 20 > processes.cpu_ticks(idle)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert math.isnan(processes.cpu_ticks(gone.pid))


@LINUX
def test_all_that_descend_from_a_process_are_below_it(child):
    pid = child("sh", "-c", "sh -c 'sleep 50; true' & sleep 50; true")
    top = psutil.Process(pid)
    until(lambda: len(top.children(recursive=True)) == 3)
    assert len(processes.descendants(pid)) == 3
    assert processes.descendants(pid) == {p.pid for p in top.children(recursive=True)}
    assert processes.descendants(pid) | {pid} <= processes.descendants(os.getpid())
    assert os.getpid() not in processes.descendants(os.getpid())


def test_without_a_proc_nothing_is_known_to_be_below(child, monkeypatch):
    def hidden(path):
        raise PermissionError

    child("sleep", "50")
    monkeypatch.setattr(os, "scandir", hidden)
    assert processes.descendants(os.getpid()) == set()


def test_a_child_is_killed_with_its_session():
    assert alone("""
        reading, writing = os.pipe()
        def lead():
            os.setsid()
            fork(lambda: time.sleep(50))
            os.write(writing, b"+")
            time.sleep(50)
        pid = fork(lead)
        os.close(writing)
        found, start = [os.read(reading, 1).decode()], time.monotonic()
        processes.kill_session(pid)
        found += [os.read(reading, 1).decode(), os.waitpid(pid, 0)[1]]  # both let go
        found.append(time.monotonic() - start < 30)
        processes.kill_session(pid)  # nobody
        """) == ["+", "", signal.SIGKILL, True]


@LINUX
def test_what_was_left_in_sessions_of_its_own_is_adopted_and_buried():
    assert alone("""
        processes.adopt_orphans()
        reading, writing = os.pipe()
        def leave():
            os.setsid()
            fork(lambda: (os.setsid(), os.write(writing, b"+"), time.sleep(50)))
        os.waitpid(fork(leave), 0)
        found = [os.read(reading, 1).decode(), len(processes.descendants(os.getpid()))]
        start = time.monotonic()
        processes.reap_all(0, 40)
        found += [none_is_left(), time.monotonic() - start < 30]
        """) == ["+", 1, True, True]


@LINUX
def test_what_ends_by_itself_is_let_and_the_rest_is_killed():
    assert alone("""
        processes.adopt_orphans()
        reading, writing = os.pipe()
        fork(lambda: (time.sleep(0.3), os.write(writing, b"+")))
        processes.reap_all(40, 0)
        os.close(writing)
        found = [os.read(reading, 9).decode(), none_is_left()]
        fork(lambda: time.sleep(50))
        processes.reap_all(0.1, 0)  # no time to kill
        found.append(none_is_left())
        processes.reap_all(0.1, 40)
        found.append(none_is_left())
        """) == ["+", True, False, True]


@LINUX
def test_who_dies_with_its_parent_is_killed_when_that_ends():
    assert alone("""
        processes.adopt_orphans()
        reading, writing = os.pipe()
        def child():
            processes.die_with_parent()
            os.write(writing, b"+")
            time.sleep(50)
        def parent():
            fork(child)
            time.sleep(50)
        pid = fork(parent)
        os.close(writing)
        found, start = [os.read(reading, 1).decode()], time.monotonic()
        os.kill(pid, signal.SIGKILL)
        found += [os.read(reading, 1).decode(), time.monotonic() - start < 30]
        os.waitpid(pid, 0)
        found.append(os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]))
        """) == ["+", "", True, -signal.SIGKILL]


@LINUX
def test_memory_keeps_its_bytes_in_large_pages():
    before, after, kept = alone("""
        def large_kb():
            with open("/proc/self/smaps_rollup") as file:
                lines = [line.split() for line in file]
            return sum(int(line[1]) for line in lines if line[0] == "AnonHugePages:")
        memory = bytearray(b"manual_dp") * (7 * 2**20)
        found = [large_kb()]
        processes.use_large_pages()
        found += [large_kb(), memory == b"manual_dp" * (7 * 2**20)]
        """)
    assert kept
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 1):
        assert after >= 56 * 1024 and after >= before  # of 63 MB
