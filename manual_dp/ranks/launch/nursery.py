"""The process that has torch imported and forks ranks; runs beside the kernel.

    serve        wait for launches; fork a warden for each
    run_warden   fork the ranks, watch them, report, and leave nothing behind

    kernel ---- nursery                  one, as long as the kernel lives
       \\           fork
        +------- warden                  one a launch, holds the line to the kernel
                    fork   fork
                  rank 0  rank 1 ...     one session each, killed if the warden dies

Kernel: the process that calls run_ranks, a notebook's or a script's. Line: a socket
from it to the warden. If the line closes, for whatever reason, the warden kills its
ranks, what these have started, and removes their folder.
A fork of a process that has run torch on several threads would hang. The nursery only
imports torch, so its forks are safe.
"""

import contextlib
import gc
import importlib
import linecache
import mmap
import os
import pickle
import shutil
import signal
import socket
import time
import traceback
from multiprocessing.connection import wait

import torch  # noqa: F401  (imported here once, so that no rank has to)
import torch.distributed  # noqa: F401

from manual_dp.ranks.launch import processes, verdict
from manual_dp.ranks.launch.rank import NOTE, run_rank

# What torch imports when the first DistributedDataParallel is made, and what
# scikit-learn's digits need: each rank would take 4 s for that. The nursery imports one
# of these at a time when nobody asks for a launch, so a launch waits for one at most:
# 0.8 s. The order matters: each import does part of the work of those below it.
LATER = [
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor.cpp_builder",
    "torch._dynamo.variables",
    "torch._dynamo",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.stats",
    "pandas",
    "sklearn.datasets",
]
GRACE = 0.5  # seconds from the first failure to the end of the other ranks
LOOKS = 10  # times to look at a rank's state before it counts as running


def serve():
    """Fork a warden for each socket that arrives on stdin, until that closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies of wardens
    processes.adopt_orphans()
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 2):  # stderr led to the kernel, for errors before this line
        os.dup2(null, number)
    later = list(LATER)
    gc.freeze()  # else garbage collection in a rank copies all objects: 0.5 s
    while True:
        if later and not wait([control], 0):
            with contextlib.suppress(Exception):  # not in this torch, or not installed
                importlib.import_module(later.pop(0))
            gc.freeze()
            if not later:
                processes.use_large_pages()
            continue
        message, lines, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            try:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run_warden(socket.socket(fileno=lines[0]))
            finally:
                os._exit(0)
        os.close(lines[0])


def run_warden(line):
    """Run one launch: read the job from `line`, watch its ranks, send the report."""
    processes.adopt_orphans()
    line.sendall(os.getpid().to_bytes(8, "little"))
    report, ranks = None, {}
    with line.makefile("rb") as file:
        job = pickle.load(file)
    try:
        os.mkdir(job["folder"], mode=0o700)
        linecache.cache.update(job["sources"])
        # memory that a rank shares with this process, for an error that no file takes
        job["notes"] = [mmap.mmap(-1, NOTE) for _ in range(job["world_size"])]
        watch = job.get("watch", _watch_call)  # live/warden.py's, for ranks that stay
        report = watch(line, job, ranks)
    except EOFError:  # the kernel hung up
        pass
    except Exception as error:
        report = {
            "printed": [],
            "results": verdict.RankError(
                "the ranks could not be started or watched: "
                f"{type(error).__name__}: {error}",
                details=traceback.format_exc(),
            ),
        }
    finally:
        _kill_ranks(ranks)
        # the wardens of a run_ranks inside a rank need a moment to end their own ranks
        processes.reap_all(GRACE, 1)
        shutil.rmtree(job["folder"], ignore_errors=True)
    if report:
        line.sendall(pickle.dumps(report))


def _watch_call(line, job, ranks):
    """Fork the ranks; wait until all have ended, one has failed, or time is up.

    Return the report. The pids go into `ranks`, so that the caller can kill the ranks
    even if this raises.
    """
    folder, ended, failed = job["folder"], {}, False
    lost = {}  # how many bytes of each file of prints were cut away
    for rank in range(job["world_size"]):
        pid = os.fork()
        if pid == 0:  # it keeps the line open, so that end_warden waits for it too
            run_rank(rank, job)
        ranks[rank] = pid
    end = time.monotonic() + job["timeout"]
    while len(ended) < len(ranks) and (now := time.monotonic()) < end:
        # Look twice, and give all that have ended the same time: the first look may see
        # a rank's end, and miss that of a rank before it, which died a little earlier.
        for rank in [*ranks, *ranks]:
            if rank in ended or (code := processes.exit_code(ranks[rank])) is None:
                continue
            ended[rank] = now, code
            if not failed and not verdict.finished(folder, rank):
                failed, end = True, min(end, now + GRACE)
        verdict.trim_prints(folder, ranks, lost)
        if wait([line], 0.005):  # the kernel sends nothing more: it has closed
            raise EOFError("the kernel hung up")
    stacks = {} if failed else ask_stacks(folder, ranks, ended)
    _kill_ranks(ranks)
    return {
        "status": {rank: code for rank, (_, code) in ended.items()},
        "printed": verdict.read_prints(folder, job["world_size"], lost),
        "results": verdict.outcome_of_launch(folder, job, ended, stacks),
    }


def ask_stacks(folder, ranks, done):
    """Let each rank but those in `done` write its stack; return (state, stack) of each.

    The state is that of the moment before: a signal wakes up a rank that waits.
    """
    states = {rank: _state(pid) for rank, pid in ranks.items() if rank not in done}
    for rank in states:
        os.kill(
            ranks[rank], signal.SIGUSR1
        )  # rank.py gives this signal to faulthandler
    if states:
        time.sleep(0.2)
    return {
        rank: (state, verdict.read_stack(folder, rank))
        for rank, state in states.items()
    }


def _state(pid):
    """Return a process's state; "R" only if each of LOOKS looks has found it running.

    A rank that waits for a file asks for it a hundred times a second. On a busy machine
    it waits for its turn to ask, and that looks like running.
    """
    for _ in range(LOOKS):
        state = processes.state_and_parent(pid)[0]
        if state != "R":
            break
        time.sleep(0.003)
    return state


def _kill_ranks(ranks):
    """Kill each rank and its session, wait until it is gone; empty `ranks`."""
    for pid in ranks.values():
        processes.kill_session(pid)
    while ranks:
        _, pid = ranks.popitem()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
