"""Processes: whether one has ended, what it left behind, and the end of all that.

    adopt, follow   be the parent of what children leave; end when one's own parent does
    ended           the status of a child, which is not reaped yet
    signal_name     a signal by its name
    look, computed  a process's state and parent; the time that it has computed for
    below           all that descend from it
    kill, bury      a child and its session; whatever else is below this process

By hand, with the standard library alone: launches need nothing but torch, and the
process that runs learners' answers loads this file without the rest of the course.
"""

import contextlib
import ctypes
import glob
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux; elsewhere nothing is done


def adopt():
    """Become the parent of what children start and leave behind."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def follow(number=None):
    """Let the system send this process a signal, SIGKILL, when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, number or signal.SIGKILL)  # which Windows does not have


def _prctl(option, value):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def ended(pid):
    """Return the exit code of a child that has ended, -n for signal n, or None.

    It stays to be reaped, so that its number cannot become another process's.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        gone, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if gone else None
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def signal_name(number):
    """Return a signal's name; a real-time signal has none but its number."""
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def look(pid):
    """Return a process's state, such as "T" when it was stopped, and its parent."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            return state, int(parent)
    except (OSError, ValueError):  # it is gone, or this system has no /proc
        return "?", 0


def computed(pid):
    """Return for how long a process has computed, in ticks; NaN where nobody knows."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    except (OSError, ValueError):
        return float("nan")  # a new one, which equals no other


def below(pid):
    """Return the processes that descend from `pid`; none where /proc cannot be read."""
    pids = [int(path.rpartition("/")[2]) for path in glob.glob("/proc/[0-9]*")]
    parents = {other: look(other)[1] for other in pids}
    found = {pid}
    while more := {child for child in parents if parents[child] in found} - found:
        found |= more
    return found - {pid}


def kill(pid):
    """Kill a child that is not reaped yet, with all of the session that it leads."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def bury(grace, patience):
    """Reap all children until none is left, and after `grace` seconds kill what stays.

    Give up `patience` seconds later: somebody forks faster than this kills.
    """
    end = time.monotonic() + grace
    with contextlib.suppress(ChildProcessError):  # none is left
        while (now := time.monotonic()) < end + patience:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in below(os.getpid()) if now >= end else []:
                kill(pid)
            time.sleep(0.003)
