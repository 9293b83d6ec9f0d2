"""Fork a process, read what it writes, and leave nothing of it behind.

Runs in child.py, which is the parent of whatever its processes leave behind.
"""

import os
import signal
import time

from manual_dp.ranks.launch.processes import below, bury, ended, kill, signal_name
from manual_dp.school.grader.usage import (
    memory_of,
    own_memory,
    seconds_below,
    threads_of,
)

OUTPUT = 4 * 2**20      # bytes of a result
FILES = 64 * 2**20      # bytes in the folder
BLOCK = 4096            # bytes that a file takes at least
PROCESSES = 64
THREADS = 256           # of all of them together
GIB = 2**30
PATIENCE = 3            # seconds on the clock for one of work: other things run too


def watch(run, folder, seconds, memory=2 * GIB):
    """Call `run(pipe)` in a process; return {"text": written, "end": how it ended}.

    memory: bytes that all its processes may take together.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run(writing)
        finally:
            os._exit(1)
    os.close(writing)
    os.set_blocking(reading, False)
    text, end, look, shared = bytearray(), "", 0.0, own_memory()
    deadline = time.monotonic() + PATIENCE * seconds
    try:
        while not end:
            busy, now = _read(reading, text), time.monotonic()
            if (code := ended(pid)) is not None:
                end = _how(code, seconds_below(pid), seconds)
            elif now > deadline:
                end = f"was stopped after {PATIENCE * seconds} s"
            elif len(text) > OUTPUT:
                end = "was stopped: it returned far too much"
            elif now > look:
                end, look = _too_much(folder, shared, memory), now + 0.1
            if not busy and not end:
                time.sleep(0.003)
        _read(reading, text)
    finally:
        os.close(reading)
        kill(pid)
        bury(0, 10)
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


def _how(code, computed, seconds):
    if code >= 0:
        return f"ended the process with exit code {code}"
    if -code == signal.SIGXCPU or -code == signal.SIGKILL and computed >= seconds:
        return f"was stopped: it computed for more than {seconds} s"
    if -code == signal.SIGKILL:
        return "was killed: it did so itself, or there was no memory left"
    return f"ended with {signal_name(-code)}"


def _too_much(folder, shared, memory):
    if _size(folder) > FILES:
        return f"was stopped: it wrote too many files, more than {FILES // 2**20} MiB"
    pids = below(os.getpid())
    if len(pids) > PROCESSES:
        return f"was stopped: it started too many processes, more than {PROCESSES}"
    if threads_of(pids) > THREADS:
        return f"was stopped: it started too many threads, more than {THREADS}"
    if memory_of(pids, shared, memory) > memory:
        return ("was stopped: its processes took too much memory, more than "
                f"{memory / GIB:.3g} GiB")
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
