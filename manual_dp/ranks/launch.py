"""Run a function in several processes, one a rank, and get its values back.

    run_ranks   start the ranks, wait, return their results; never hang
    RankError   what went wrong in which rank

A call starts no Python: one process, the nursery, has imported torch once, and forks
the ranks when they are asked for (nursery.py). So ranks start in tenths of a second.
They meet through a file in a private folder and talk over loopback alone: nothing
listens on a port that another program, or another machine, could reach.
"""

import functools
import inspect
import linecache
import math
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import threading
import weakref

import torch

BACKENDS = ("gloo", "nccl")


class RankError(RuntimeError):
    """Say what went wrong first, and in which rank; `rank` holds its number."""

    def __init__(self, message, rank=None, details=""):
        super().__init__(message)
        self.rank, self.details = rank, details
        if details and hasattr(self, "add_note"):  # Python 3.11
            self.add_note(details)


def run_ranks(function, world_size, *args, timeout=60, backend="gloo"):
    """Call `function(*args)` in `world_size` processes; return their results by rank.

    In each, torch.distributed is ready: `dist.get_rank()` says which rank it is.
    function, args: sent with cloudpickle, so a function from a notebook cell works.
    Every rank gets a copy; what it changes, the caller sees only in the results.
    timeout: seconds until all must be done. backend: "gloo", or "nccl" on GPUs.
    Raises RankError, naming the cause and not its consequences, if a rank raises,
    dies, ends without a result or takes too long. When the call ends, however it
    ends, so have all ranks, and their files are gone. What the ranks print is
    printed here afterwards, rank by rank.
    """
    _check(function, world_size, timeout, backend)
    job = {"world_size": world_size, "timeout": timeout, "backend": backend,
           "environ": dict(os.environ), "path": sys.path, "folder": os.getcwd(),
           "sources": _sources(function), "call": _pack(function, args)}
    report = _ask(job)
    for rank, (out, err) in enumerate(report["printed"]):
        _echo(rank, out, sys.stdout)
        _echo(rank, err, sys.stderr)
    if "error" in report:
        raise RankError(*report["error"])
    return [pickle.loads(result) for result in report["results"]]


def _pack(function, args):
    import cloudpickle
    try:
        return cloudpickle.dumps((function, args))
    except Exception as error:
        raise TypeError("function and args must be sent to other processes, but "
                        f"cloudpickle says: {type(error).__name__}: {error}") from error


def _sources(function):
    """Return the text of the cell that defines function, for tracebacks in the rank."""
    name = getattr(inspect.unwrap(function), "__code__", None)
    name = name and name.co_filename
    return {name: linecache.cache[name]} if name in linecache.cache else {}


def _ask(job):
    """Give the job to the nursery and wait for the report."""
    line = _nursery(os.getpid()).connect()
    try:
        send(line, pickle.dumps(job))
        line.settimeout(job["timeout"] + 5)  # the nursery's own deadline comes first
        return pickle.loads(receive(line))
    except (OSError, EOFError) as error:
        raise RankError("the ranks' parent process is gone or does not answer "
                        f"({type(error).__name__}: {error})") from None
    finally:  # also on an interrupt: hang up, and wait until all ranks are gone
        _hang_up(line)


def _hang_up(line):
    with line:
        try:
            line.shutdown(socket.SHUT_WR)
            line.settimeout(2)
            while line.recv(1 << 16):
                pass
        except OSError:
            pass


class Nursery:
    """Hold the process that forks ranks; it ends when this process does."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process = None

    def connect(self):
        """Return a socket to a new warden: one launch, one warden."""
        ours, theirs = socket.socketpair()
        with self.lock, theirs:
            if self.process is None or self.process.poll() is not None:
                self._start()
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        return ours

    def _start(self):
        self.control, theirs = socket.socketpair()
        code = (f"import sys; sys.path[:] = {sys.path!r}\n"
                "from manual_dp.ranks.nursery import serve\n"
                f"serve({theirs.fileno()})")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True)  # no Ctrl-C for it
        weakref.finalize(self, _end, self.process, self.control)


def _end(process, control):
    control.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@functools.cache
def _nursery(pid):
    # by pid: a forked copy of this process must not use its parent's
    return Nursery()


def send(line, data):
    """Send bytes, their length first."""
    line.sendall(struct.pack("Q", len(data)))
    line.sendall(data)


def receive(line):
    """Return the bytes that `send` sent; raise EOFError if the other side hangs up."""
    return _read(line, struct.unpack("Q", _read(line, 8))[0])


def _read(line, count):
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = line.recv_into(view)
        if not got:
            raise EOFError("hung up")
        view = view[got:]
    return data


def _echo(rank, text, stream):
    for line in text.splitlines():
        if not re.match(r"\[[EWI]\d{4} ", line):  # gloo's own log repeats the error
            print(f"rank {rank}: {line}", file=stream)


def _check(function, world_size, timeout, backend):
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}")
    if type(world_size) is not int or not 1 <= world_size <= 256:
        raise ValueError(f"world_size must be a whole number from 1 to 256, "
                         f"got {world_size!r}")
    if not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise ValueError(f"timeout must be a number of seconds > 0, got {timeout!r}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {backend!r}")
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        raise ValueError(f"nccl needs a GPU for each rank: {world_size} ranks, "
                         f"{torch.cuda.device_count()} GPUs")
    if not hasattr(os, "fork"):
        raise OSError("run_ranks needs fork: Linux, macOS, or WSL on Windows")
