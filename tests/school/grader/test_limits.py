"""Limits of other processes: a change is noticed, whatever it is, and nothing else."""

import os
import subprocess
import sys

import psutil
import pytest

from manual_dp.school.grader.limits import Doubtful, Others

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of others: Linux's")


@pytest.fixture
def other():
    """Return a process that waits."""
    process = subprocess.Popen(["sleep", "999"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_what_is_as_it_was_is_no_fault(other):
    others = Others(other.pid)
    others.compare()
    others.compare()


@LINUX
@pytest.mark.parametrize("change, word", [
    (lambda p: p.rlimit(psutil.RLIMIT_AS, (2**40, 2**40)), "RLIMIT_AS"),
    (lambda p: p.rlimit(psutil.RLIMIT_CPU, (9999, 9999)), "RLIMIT_CPU"),
    (lambda p: p.rlimit(psutil.RLIMIT_NOFILE, (99, 100)), "RLIMIT_NOFILE"),
    (lambda p: p.nice(19), "nice value"),
    (lambda p: p.ionice(psutil.IOPRIO_CLASS_IDLE), "turn at the disk"),
    (lambda p: os.sched_setscheduler(p.pid, os.SCHED_BATCH, os.sched_param(0)),
     "scheduler")])
def test_a_change_is_named_with_its_process(other, change, word):
    others = Others(other.pid)
    change(other)
    with pytest.raises(Doubtful, match=rf"the .*{word}.* of process {other.pid} changed"):
        others.compare()


@LINUX
def test_other_cores_are_noticed(other):
    cores = other.cpu_affinity()
    if len(cores) < 2:
        pytest.skip("there is one core")
    others = Others(other.pid)
    other.cpu_affinity(cores[:1])
    with pytest.raises(Doubtful, match="cores"):
        others.compare()


@LINUX
def test_this_process_and_its_parents_are_watched(other):
    watched = [process.pid for process in Others(other.pid).processes]
    assert {os.getpid(), os.getppid(), other.pid} <= set(watched)


def test_a_process_that_is_gone_is_no_fault(other):
    others = Others(other.pid)
    other.kill()
    other.wait()
    others.compare()
