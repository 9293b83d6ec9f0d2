"""Processes: how one ended, what it does, what it started, and how to end all that.

    adopt_orphans      become the parent of what children leave behind
    die_with_parent    end when the parent does
    use_large_pages    make a fork of this process cheaper
    exit_code          the exit code of a child, which is not reaped yet
    signal_name        a signal by its name
    state_and_parent   what a process does now, and which process is its parent
    cpu_ticks          the time that it has computed for
    descendants        its children, their children, and so on
    kill_session       kill a child and what it started
    reap_all           wait for all descendants of this process, then kill them

With the standard library alone, without psutil: launches need nothing but torch.
"""

import contextlib
import ctypes
import glob
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # numbers of Linux's prctl
MADV_COLLAPSE = 25  # a number of Linux's madvise, from 6.1 on
LARGE = 2**21  # bytes of a large page


def adopt_orphans():
    """Become the parent of all descendants whose own parent ends (on Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent():
    """Let the system kill this process when its parent ends (on Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option, value):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def use_large_pages():
    """Put this process's memory into large pages (on Linux from 6.1).

    A fork copies an entry for each page. With torch and more imported, 300 MB are
    70,000 small pages, or a few hundred: a fork then takes half the time or less.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    for line in lines:
        span, access, _, _, inode, *_ = line.split()
        if access == "rw-p" and inode == "0":  # its own memory, not a file's
            start, end = (int(edge, 16) for edge in span.split("-"))
            start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
            if start < end:
                madvise(start, end - start, MADV_COLLAPSE)  # if it cannot: as before


def exit_code(pid):
    """Return the exit code of a child, -n if signal n ended it, None if it runs.

    The child is not reaped, so that no new process can get its number.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13: the child is reaped
        gone, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if gone else None
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def signal_name(number):
    """Return a signal's name, such as "SIGKILL"; "signal 40" if it has none."""
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def state_and_parent(pid):
    """Return a process's state, and its parent.

    "R" is running, "S" waiting, "T" stopped, "?" unknown.
    """
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            return state, int(parent)
    except (OSError, ValueError):  # no such process, or a system without /proc
        return "?", 0


def cpu_ticks(pid):
    """Return how long a process has computed, in ticks; NaN if that cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
            return int(user) + int(system)
    except (OSError, ValueError):
        return float("nan")  # a new NaN equals no other: "it has computed since"


def descendants(pid):
    """Return the pids of all descendants of `pid`; none where /proc cannot be read."""
    pids = [int(path.rpartition("/")[2]) for path in glob.glob("/proc/[0-9]*")]
    parents = {other: state_and_parent(other)[1] for other in pids}
    found = {pid}
    while more := {child for child in parents if parents[child] in found} - found:
        found |= more
    return found - {pid}


def kill_session(pid):
    """Kill a child that is not reaped yet, and its process group if it leads one."""
    for kill in (os.killpg, os.kill):  # it may have no group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def reap_all(grace, patience):
    """Reap children until none is left; kill those left after `grace` seconds.

    Give up after `patience` more seconds, for children that fork faster than we can
    kill them.
    """
    end = time.monotonic() + grace
    with contextlib.suppress(ChildProcessError):  # none is left
        while (now := time.monotonic()) < end + patience:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            if now >= end:
                for pid in descendants(os.getpid()):
                    kill_session(pid)
            time.sleep(0.003)
