"""The caller's side of a launch: send the function to a warden, wait, return values.

    run_ranks      start the ranks, wait, return their results; never hang
    make_job       what a warden must know to start ranks
    start_warden, ask_warden, end_warden   one warden a launch (nursery.py)
    lend_nursery, borrow_nursery           one nursery for many forks
    show, unpack   print what the ranks printed, raise their error; read a result
    check_start, check_timeout             refuse arguments before anything starts

ranks/live uses all of them but run_ranks.
"""

import contextlib
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
CANNOT_SEND = "function and args must be sent to other processes, but cloudpickle says"
START = 60  # seconds for the nursery's first answer: reading torch may take 20
LATE = 15  # seconds that we wait for the warden's report after its deadline


def run_ranks(function, world_size, *args, timeout=60, backend="gloo"):
    """Call `function(*args)` in `world_size` processes; return their results by rank.

    In each, torch.distributed is ready: `dist.get_rank()` says which rank it is.
    function, args: sent with cloudpickle, so a function from a notebook cell works.
    Every rank gets a copy; what it changes, the caller sees only in the results.
    torch's settings here, such as the default dtype, are not sent: set them in it.
    The seed of torch, random and numpy is the rank: each draws its own, in every call.
    timeout: seconds from the start of the ranks until all must be done. Then the late
    ones have 0.2 s to write down where they are; a result in that time still counts.
    Sending function, args and results takes its time in addition.
    backend: "gloo", or "nccl" on GPUs.
    Raises RankError, naming the cause and not its consequences, if a rank raises,
    dies, ends without a result or takes too long. When this call returns or raises,
    all ranks have ended and their files are gone. What the ranks printed is printed
    here at the end, rank by rank.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}")
    check_start(world_size, backend)
    check_timeout(timeout)
    job = make_job(
        world_size, timeout, backend, call=pack((function, args), CANNOT_SEND)
    )
    line, warden = start_warden()
    try:
        report = ask_warden(line, job, timeout)
    finally:  # also on an interrupt
        end_warden(line, warden, job["folder"])
    show(report)
    return [unpack(rank, result) for rank, result in enumerate(report["results"])]


def make_job(world_size, timeout, backend, **more):
    """Return what a warden must know to start ranks, and `more`: a dict."""
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
    finally:  # the ranks' error matters more than one of printing
        if isinstance(report["results"], RankError):
            raise report["results"]


def unpack(rank, result):
    """Return the value that a rank packed; RankError if it cannot be unpickled here."""
    try:
        return pickle.loads(result)
    except (Exception, SystemExit) as error:  # SystemExit would end the caller
        raise RankError(
            f"rank {rank}'s result cannot be read here: "
            f"{type(error).__name__}: {error}",
            rank,
            kind="unreadable",
        ) from error


def _sources():
    """Return linecache's entries of notebook cells: the ranks' tracebacks need them.

    No file holds a cell's text, so a rank could not read it anywhere.
    """
    return {
        name: entry
        for name, entry in linecache.cache.copy().items()
        if len(entry) == 4 and not os.path.exists(name)
    }


def start_warden():
    """Return a socket to a new warden, and its pid; `end_warden` ends both."""
    return _nursery(os.getpid()).start_warden()


def ask_warden(line, message, timeout):
    """Send the warden a job or a cell; return its report.

    The warden keeps the deadline; we wait LATE seconds longer.
    """
    try:
        line.settimeout(timeout + LATE)
        line.sendall(pickle.dumps(message))
        with line.makefile("rb") as file:
            return pickle.load(file)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise RankError(
            "the process that watches the ranks has died or hangs "
            f"({type(error).__name__}); the ranks were ended. Run this again: "
            "it starts new ranks."
        ) from None


def end_warden(line, warden, folder):
    """Close the line, which ends the warden and its ranks; wait until all are gone."""
    with line, contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)  # the warden reads this as "the kernel hung up"
        line.settimeout(LATE)
        try:
            # warden and ranks each hold the other end: empty bytes say that all ended
            while line.recv(1 << 16):
                pass
        except TimeoutError:  # somebody has stopped it, perhaps; its ranks die with it
            os.kill(warden, signal.SIGKILL)
            line.recv(1)
    # the warden is ours to reap only if we adopt orphans and the nursery has died
    with contextlib.suppress(ChildProcessError):
        os.waitpid(warden, 0)
    shutil.rmtree(folder, ignore_errors=True)  # a killed warden leaves it


class Nursery:
    """Start the process that forks wardens, which fork ranks; end it with this one."""

    def __init__(self):
        self.lock = threading.RLock()  # a signal's handler may launch ranks, too
        self.process = None

    def start_warden(self):
        """Return a socket to a new warden, and its pid: one launch, one warden."""
        with self.lock:
            for _ in range(2):  # if this nursery has died, once more with a new one
                self.start()
                ours, theirs = socket.socketpair()
                ours.settimeout(START)
                with contextlib.suppress(OSError):
                    with theirs:
                        socket.send_fds(self.control, [b"+"], [theirs.fileno()])
                    if pid := ours.recv(8):
                        return ours, int.from_bytes(pid, "little")
                ours.close()
                stderr, self.process = self.end(), None
        raise RankError(
            "the process that forks the ranks does not start; "
            "see whether `python -c 'import manual_dp.ranks'` works",
            None,
            stderr,
        )

    def start(self):
        """Start the process if it does not run yet; do not wait for its imports."""
        if self.process is not None:
            return
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
                start_new_session=True,  # or Ctrl-C would reach the nursery
                env={
                    **os.environ,
                    # or code that asks for GPUs opens them, and no fork could use one
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                    "PYTHON_COLORS": "0",
                },
            )
        self.end = weakref.finalize(self, _end_nursery, process, self.control)
        self.process = process


def _end_nursery(process, control):
    """End the nursery; return what it wrote to stderr, if it could not start."""
    control.close()
    with process:
        process.kill()  # it sees the closed socket only after its current import
        return process.stderr.read()


NURSERIES = {}  # of each pid: a forked copy of this process may outlive its parent's


def _nursery(pid):
    if pid not in NURSERIES:
        NURSERIES[pid] = Nursery()
    return NURSERIES[pid]


def lend_nursery():
    """Start this process's nursery; return it, for forks that call `borrow_nursery`.

    A nursery imports for some seconds, so many short-lived forks do well to share one.
    """
    nursery = _nursery(os.getpid())
    nursery.start()
    return nursery


def borrow_nursery(nursery):
    """Let this fork, which ends before its parent, use the nursery of its parent."""
    NURSERIES[os.getpid()] = nursery


def check_timeout(timeout):
    """Raise ValueError unless `timeout` is a number of seconds that one can wait."""
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (number and 0 < timeout <= 10**6):  # which NaN fails, too
        raise ValueError(f"timeout must be seconds from 0 to 10**6, got {timeout!r}")


def check_start(world_size, backend):
    """Raise ValueError or OSError if this machine cannot start `world_size` ranks."""
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
