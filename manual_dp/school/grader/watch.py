"""Fork a process, read what it writes, and leave nothing of it behind.

    watch   run a function in a process of its own; return its text and how it ended

Runs in child.py, which is the parent of whatever its processes leave behind.
"""

import os
import signal
import time

OUTPUT = 4 * 2**20      # bytes of a result
FILES = 64 * 2**20      # bytes in the folder
BLOCK = 4096            # bytes that a file takes at least
PROCESSES = 64
PATIENCE = 3            # seconds on the clock for one of work: other things run too


def watch(run, folder, seconds):
    """Call `run(pipe)` in a process; return {"text": written, "end": how it ended}."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run(writing)
        finally:
            os._exit(1)
    os.close(writing)
    os.set_blocking(reading, False)
    text, end, look = bytearray(), "", 0.0
    deadline = time.monotonic() + PATIENCE * seconds
    try:
        while not end:
            busy, now = _read(reading, text), time.monotonic()
            if (code := _ended(pid)) is not None:
                end = _how(code)
            elif now > deadline:
                end = f"was stopped after {PATIENCE * seconds} s"
            elif len(text) > OUTPUT:
                end = "was stopped: it returned far too much"
            elif now > look:
                end, look = _too_much(folder), now + 0.1
            if not busy and not end:
                time.sleep(0.003)
        _read(reading, text)
    finally:
        os.close(reading)
        _kill(pid)
    return {"text": text[:OUTPUT].decode(errors="replace"), "end": end}


def _read(fd, text):
    """Add what has been written to `text`; return whether there was anything."""
    before = len(text)
    try:
        while len(text) <= OUTPUT and (more := os.read(fd, 2**16)):
            text += more
    except BlockingIOError:
        pass
    return len(text) > before


def _ended(pid):
    """Return the exit code of a child that has ended, -n for signal n, or None."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        gone, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if gone else None
    gone = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if gone is None:
        return None
    return gone.si_status if gone.si_code == os.CLD_EXITED else -gone.si_status


def _how(code):
    if code >= 0:
        return f"ended the process with exit code {code}"
    if -code in (signal.SIGXCPU, signal.SIGKILL):
        return "was stopped: too much time or memory"
    names = {number.value: number.name for number in signal.Signals}
    return f"ended with {names.get(-code, f'signal {-code}')}"


def _too_much(folder):
    if _size(folder) > FILES:
        return "was stopped: it wrote too many files"
    if len(_below(os.getpid())) > PROCESSES:
        return "was stopped: it started too many processes"
    return ""


def _size(folder):
    size, folders = 0, [folder]
    while folders and size <= FILES:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    size += BLOCK + entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # it is gone already, or its path is too long
            pass
    return size


def _below(pid):
    """Return the processes below `pid`, as /proc has them; none without a /proc."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        try:
            with open(f"/proc/{int(name)}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (ValueError, OSError):
            pass
    below = {pid}
    while more := {p for p, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}


def _kill(pid):
    """Kill the session of `pid`, and what it left elsewhere, until nothing is left."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for kill, target in [(os.killpg, pid), (os.kill, pid),
                             *((os.kill, other) for other in _below(os.getpid()))]:
            try:
                kill(target, signal.SIGKILL)  # all unreaped: nobody else's numbers
            except (ProcessLookupError, PermissionError):
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.003)
