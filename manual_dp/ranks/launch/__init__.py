"""Run a function in several processes, one a rank, get its values back; never hang.

    run_ranks   start the ranks, wait, return their results; never hang
    RankError   what went wrong in which rank

and for those who keep ranks (ranks/live): make_job, connect, ask, show, hang_up.

A call starts no Python: one process, the nursery, has imported torch once, and forks
the ranks when they are asked for (nursery.py). So ranks start in tenths of a second.
They meet through a file in a private folder and talk over loopback alone: no other
machine can reach them.
"""

import contextlib
import functools
import linecache
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref

import torch

from manual_dp.ranks.launch import verdict
from manual_dp.ranks.launch.rank import pack
from manual_dp.ranks.launch.verdict import RankError

BACKENDS = ("gloo", "nccl")
UNSENT = "function and args must be sent to other processes, but cloudpickle says"
START = 60  # seconds for the nursery's first answer: a slow disk takes 20 to read torch
LATE = 15  # seconds that an answer may come after its deadline


def run_ranks(function, world_size, *args, timeout=60, backend="gloo"):
    """Call `function(*args)` in `world_size` processes; return their results by rank.

    In each, torch.distributed is ready: `dist.get_rank()` says which rank it is.
    function, args: sent with cloudpickle, so a function from a notebook cell works.
    Every rank gets a copy; what it changes, the caller sees only in the results.
    torch's settings here, such as the default dtype, are not sent: set them in it.
    The seed of torch, random and numpy is the rank: each draws its own, in every call.
    timeout: seconds from their start until all must be done. What is done while the
    late ones are asked where they are, 0.2 s, counts too; sending function, args and
    results comes on top. backend: "gloo", or "nccl" on GPUs.
    Raises RankError, naming the cause and not its consequences, if a rank raises,
    dies, ends without a result or takes too long. When the call ends, however it
    ends, so have all ranks, and their files are gone. What the ranks print is
    printed here afterwards, rank by rank.
    """
    _check(function, world_size, timeout, backend)
    job = make_job(world_size, timeout, backend, call=pack((function, args), UNSENT))
    line, warden = connect()
    try:
        report = ask(line, job, timeout)
    finally:  # also on an interrupt
        hang_up(line, warden, job["folder"])
    show(report)
    return [unpack(rank, result) for rank, result in enumerate(report["results"])]


def make_job(world_size, timeout, backend, **more):
    """Return what a warden must know to start ranks; here they have no names yet."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError(
            "the working directory was deleted; call os.chdir with one that exists"
        ) from None
    return {
        "world_size": world_size,
        "timeout": timeout,
        "backend": backend,
        "environ": dict(os.environ),
        "path": sys.path,
        "cwd": cwd,
        "folder": f"{tempfile.gettempdir()}/manual_dp-{secrets.token_hex(8)}",
        "sources": _sources(),
        **more,
    }


def show(report):
    """Print what the ranks printed, rank by rank; raise their error, if any."""
    try:
        for rank, (out, err) in enumerate(report["printed"]):
            verdict.echo(rank, out, sys.stdout)
            verdict.echo(rank, err, sys.stderr)
    finally:  # also where nothing can be printed
        if isinstance(report["results"], RankError):
            raise report["results"]


def unpack(rank, result):
    """Return what a rank packed; RankError if that cannot be read in this process."""
    try:
        return pickle.loads(result)
    except (Exception, SystemExit) as error:  # or a result could end this process
        raise RankError(
            f"rank {rank}'s result cannot be read here: "
            f"{type(error).__name__}: {error}",
            rank,
            kind="unreadable",
        ) from error


def _sources():
    """Return the text of the notebook's cells, for tracebacks: no file holds it."""
    return {
        name: entry
        for name, entry in linecache.cache.copy().items()
        if len(entry) == 4 and not os.path.exists(name)
    }


def connect():
    """Return a line to a new warden, and its pid; `hang_up` ends both."""
    return _nursery(os.getpid()).connect()


def ask(line, message, timeout):
    """Send the warden a message; return its report, which comes by its own deadline."""
    try:
        line.settimeout(timeout + LATE)
        line.sendall(pickle.dumps(message))
        with line.makefile("rb") as file:
            return pickle.load(file)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise RankError(
            "the ranks' parent process is gone or does not answer "
            f"({type(error).__name__})"
        ) from None


def hang_up(line, warden, folder):
    """Wait until the warden and its ranks are gone: each holds an end of the line."""
    with line, contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
        line.settimeout(LATE)
        try:
            while line.recv(1 << 16):
                pass
        except TimeoutError:  # it was stopped, perhaps; its ranks die with it
            os.kill(warden, signal.SIGKILL)
            line.recv(1)
    with contextlib.suppress(ChildProcessError):  # it is one where answers are graded
        os.waitpid(warden, 0)
    shutil.rmtree(folder, ignore_errors=True)  # a killed warden left it


class Nursery:
    """Hold the process that forks ranks; it ends when this process does."""

    def __init__(self):
        self.lock = threading.RLock()  # a signal's handler may launch ranks, too
        self.process = None

    def connect(self):
        """Return a socket to a new warden, and its pid: one launch, one warden."""
        with self.lock:
            for _ in range(2):  # the second time with a new nursery
                if self.process is None:
                    self._start()
                ours, theirs = socket.socketpair()
                ours.settimeout(START)
                with contextlib.suppress(OSError):
                    with theirs:
                        socket.send_fds(self.control, [b"+"], [theirs.fileno()])
                    if pid := ours.recv(8):
                        return ours, int.from_bytes(pid, "little")
                ours.close()
                said, self.process = self.end(), None
        raise RankError("the process that forks the ranks does not start", None, said)

    def _start(self):
        self.control, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {list(map(str, sys.path))!r}\n"
            "from manual_dp.ranks.launch.nursery import serve; serve()"
        )
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                errors="replace",
                start_new_session=True,
                # or what only asks for GPUs opens them here, and no fork could use one
                env={
                    **os.environ,
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                    "PYTHON_COLORS": "0",
                },
            )
        # a session of its own: no Ctrl-C reaches it
        self.end = weakref.finalize(self, _end, process, self.control)
        self.process = process


def _end(process, control):
    """End the nursery; return what it said if it could not begin."""
    control.close()
    with process:
        process.kill()  # it may be busy importing what nobody will need
        return process.stderr.read()


@functools.cache
def _nursery(pid):
    # by pid: a forked copy of this process must not use its parent's
    return Nursery()


def _check(function, world_size, timeout, backend):
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}")
    check_start(world_size, backend)
    check_timeout(timeout)


def check_timeout(timeout):
    """Raise ValueError if `timeout` is no number of seconds to wait."""
    seconds = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (seconds and 0 < timeout <= 10**6):
        raise ValueError(f"timeout must be seconds from 0 to 10**6, got {timeout!r}")


def check_start(world_size, backend):
    """Raise ValueError or OSError if so many ranks cannot be started here."""
    if type(world_size) is not int or not 1 <= world_size <= 256:
        raise ValueError(
            f"world_size must be a whole number from 1 to 256, got {world_size!r}"
        )
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {backend!r}")
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        raise ValueError(
            f"nccl needs a GPU for each rank: {world_size} ranks, "
            f"{torch.cuda.device_count()} GPUs"
        )
    if not hasattr(os, "fork"):
        raise OSError("ranks need fork: Linux, macOS, or WSL on Windows")
