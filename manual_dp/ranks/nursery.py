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
its ranks and removes their folder.
"""

import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import tempfile
import time

import torch  # noqa: F401  (imported here once, so that no rank has to)
import torch.distributed  # noqa: F401

from manual_dp.ranks import verdict
from manual_dp.ranks.launch import receive, send
from manual_dp.ranks.rank import run

# What torch imports when the first DistributedDataParallel is made, in pieces of at
# most 0.3 s each: a launch never waits for more than one.
LATER = ["sympy", "torch._inductor.cpp_builder", "torch.fx.experimental.symbolic_shapes",
         "torch.distributed.tensor", "torch.distributed.fsdp",
         "torch._dynamo.variables", "torch._dynamo"]
GRACE = 0.5       # seconds from the first failure to the end of the other ranks
PRINTED = 10**6   # characters of a rank's output that reach the kernel


def serve(control):
    """Fork a warden for each socket that arrives on `control`, until it closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies of wardens
    control = socket.socket(fileno=control)
    later = list(LATER)
    while True:
        if later and not select.select([control], [], [], 0)[0]:
            _import(later.pop(0))
            continue
        message, lines, *_ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            warden(socket.socket(fileno=lines[0]))
            os._exit(0)
        os.close(lines[0])


def warden(line):
    """Run one launch: read the job from `line`, watch its ranks, send the report."""
    folder, ranks = None, {}
    try:
        job = pickle.loads(receive(line))
        folder = tempfile.mkdtemp(prefix="manual_dp-")  # mode 0700
        for rank in range(job["world_size"]):
            pid = os.fork()
            if pid == 0:
                line.close()
                run(rank, job, folder)
            ranks[rank] = pid
        report = _watch(line, job, folder, ranks)
    except (EOFError, OSError):
        report = None  # the kernel hung up
    finally:
        _kill(ranks.values())
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if report:
        send(line, pickle.dumps(report))


def _import(name):
    try:
        importlib.import_module(name)
    except ImportError:  # another torch: ranks then import what they need
        pass


def _watch(line, job, folder, ranks):
    """Wait until all ranks have ended, one has failed, or time is up; then judge."""
    end, status, late = time.monotonic() + job["timeout"], {}, False
    while len(status) < len(ranks):
        for rank in ranks.keys() - status.keys():
            if (code := _ended(ranks[rank])) is not None:
                status[rank] = code
                if not verdict.finished(folder, rank):
                    end = min(end, time.monotonic() + GRACE)
        if time.monotonic() > end:
            late = not any(not verdict.finished(folder, rank) for rank in status)
            break
        if select.select([line], [], [], 0.005)[0]:
            raise EOFError("the kernel hung up")
    places = _ask_where(folder, ranks, status) if late else {}
    _kill(ranks[rank] for rank in ranks.keys() - status.keys())
    return {"printed": [_printed(folder, rank) for rank in ranks],
            **verdict.judge(folder, job, status, places)}


def _ended(pid):
    """Return the exit status of a child that has ended, leaving it unreaped, or None."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _ask_where(folder, ranks, status):
    """Let every rank that still runs write down where it is; return what it wrote."""
    late = [rank for rank in ranks if rank not in status]
    stopped = {rank for rank in late if _stopped(ranks[rank])}
    for rank in late:
        os.kill(ranks[rank], signal.SIGUSR1)  # faulthandler's, set up in rank.py
    time.sleep(0.2)
    return {rank: "stopped" if rank in stopped
            else verdict.read(folder, f"stack-{rank}").decode() for rank in late}


def _stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:  # no /proc on this system
        return False


def _kill(pids):
    """Kill each rank with all that it started, and wait until it is gone."""
    for pid in pids:
        # unreaped until here, so neither number can be another process's by now
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass


def _printed(folder, rank):
    """Return what a rank wrote to stdout and to stderr, the end of it if it is long."""
    texts = []
    for name in ("out", "err"):
        with open(f"{folder}/{name}-{rank}", "ab+") as file:
            size = file.tell()
            file.seek(max(0, size - PRINTED))
            text = file.read().decode(errors="replace")
        cut = f"[{size - PRINTED} bytes left out]\n" if size > PRINTED else ""
        texts.append(cut + text)
    return texts
