"""The process that has torch imported and forks ranks; runs beside the kernel.

    serve    wait for launches; fork a warden for each
    warden   fork the ranks, watch them, report, and leave nothing behind

    kernel ---- nursery                  one, as long as the kernel lives
       \\           fork
        +------- warden                  one a launch, holds the line to the kernel
                    fork   fork
                  rank 0  rank 1 ...     one session each, killed if the warden dies

Nothing is ever forked from a process that has run torch on several threads, which
would hang. If the line to the kernel closes, for whatever reason, the warden kills
its ranks, what these have started, and removes their folder.
"""

import contextlib
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
from manual_dp.ranks.launch.rank import NOTE, run

# What torch imports when the first DistributedDataParallel is made, and what gives the
# digits: each rank would take 4 s. In pieces of 0.8 s at most, when nobody asks for a
# launch, which never waits for more than one. The order cuts the pieces.
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
LOOKS = 10  # at a rank that seems to run


def serve():
    """Fork a warden for each socket that arrives on stdin, until that closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies of wardens
    processes.adopt()
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 2):  # stderr led to the kernel, had this not begun
        os.dup2(null, number)
    later = list(LATER)
    while True:
        if later and not wait([control], 0):
            with contextlib.suppress(Exception):  # another torch, or none of it here
                importlib.import_module(later.pop(0))
            continue
        message, lines, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            try:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                warden(socket.socket(fileno=lines[0]))
            finally:
                os._exit(0)
        os.close(lines[0])


def warden(line):
    """Run one launch: read the job from `line`, watch its ranks, send the report."""
    processes.adopt()
    line.sendall(os.getpid().to_bytes(8, "little"))
    report, ranks = None, {}
    with line.makefile("rb") as file:
        job = pickle.load(file)
    try:
        os.mkdir(job["folder"], mode=0o700)
        linecache.cache.update(job["sources"])
        report = job.get("watch", _watch)(line, job, ranks)
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
        _kill(ranks)
        # a run_ranks inside a rank cleans up after itself, if it is let
        processes.bury(GRACE, 1)
        shutil.rmtree(job["folder"], ignore_errors=True)
    if report:
        line.sendall(pickle.dumps(report))


def _watch(line, job, ranks):
    """Fork the ranks; wait until all have ended, one has failed, or time is up; judge.

    The pids go into `ranks`, which the caller kills, whatever happens here.
    """
    folder, ended, failed, lost = job["folder"], {}, False, {}
    # memory that a rank shares with this process: for an error that no file takes
    job["notes"] = [mmap.mmap(-1, NOTE) for _ in range(job["world_size"])]
    for rank in range(job["world_size"]):
        pid = os.fork()
        if pid == 0:  # it keeps its end of the line: the kernel waits for that too
            run(rank, job)
        ranks[rank] = pid
    end = time.monotonic() + job["timeout"]
    while len(ended) < len(ranks) and (now := time.monotonic()) < end:
        for rank in [*ranks, *ranks]:  # twice: who ended meanwhile ended together
            if rank in ended or (code := processes.ended(ranks[rank])) is None:
                continue
            ended[rank] = now, code
            if not failed and not verdict.finished(folder, rank):
                failed, end = True, min(end, now + GRACE)
        verdict.trim(folder, ranks, lost)
        if wait([line], 0.005):
            raise EOFError("the kernel hung up")
    places = {} if failed else ask_where(folder, ranks, ended)
    _kill(ranks)
    return {
        "status": {rank: code for rank, (_, code) in ended.items()},
        "printed": verdict.printed(folder, job["world_size"], lost),
        "results": verdict.judge(folder, job, ended, places),
    }


def ask_where(folder, ranks, ended):
    """Let each rank but those in `ended` write where it is; return state and place."""
    late = {rank: _state(pid) for rank, pid in ranks.items() if rank not in ended}
    for rank in late:
        os.kill(ranks[rank], signal.SIGUSR1)  # faulthandler's, set up in rank.py
    if late:
        time.sleep(0.2)
    return {
        rank: (state, verdict.stack_of(folder, rank)) for rank, state in late.items()
    }


def _state(pid):
    """Return a process's state: "R" if it is always running, not if it looks up once.

    A rank that waits for a file asks for it a hundred times a second, and on a busy
    machine it waits for its turn to ask: that looks like running.
    """
    for _ in range(LOOKS):
        state = processes.look(pid)[0]
        if state != "R":
            break
        time.sleep(0.003)
    return state


def _kill(ranks):
    """Kill each rank with all that it started, wait until it is gone; forget it."""
    for pid in ranks.values():
        processes.kill(pid)
    while ranks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ranks.popitem()[1], 0)
