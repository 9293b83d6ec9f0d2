"""The warden of ranks that stay: hand them cells, watch each, report.

watch   fork the ranks; then a cell at a time, until they cannot go on
"""

import contextlib
import glob
import linecache
import os
import pickle
import socket
import time
from multiprocessing.connection import wait

from manual_dp.ranks.launch import nursery, processes, verdict
from manual_dp.ranks.launch.rank import write
from manual_dp.ranks.live import fault
from manual_dp.ranks.live.rank import run

START = 60  # seconds until all ranks have met
LOOK = 0.5  # seconds between two looks at ranks that wait while another has raised


def watch(line, job, ranks):
    """Fork the ranks; report the start, then each cell that comes in by `line`.

    Return when a rank is lost or hangs; EOFError when the kernel hangs up. The caller
    kills the ranks, whose pids go into `ranks`.
    """
    lines = {}
    for rank in range(job["world_size"]):
        ours, theirs = socket.socketpair()
        lines[rank] = ours
        pid = os.fork()
        if pid == 0:
            for other in lines.values():
                other.close()
            run(rank, job, theirs)
        ranks[rank] = pid
        theirs.close()
    if not job["group"]:
        open(f"{job['folder']}/meeting", "x").close()
    start = {"ranks": list(ranks), "timeout": START, "world_size": len(ranks)}
    report = _watch_cell(line, job["folder"], start, ranks, lines)
    report["over"] = not isinstance(report["results"], list)
    while True:
        line.sendall(pickle.dumps(report))
        if report["over"]:
            return
        while not wait([line], 1):  # a thread of the last cell may go on printing
            verdict.trim(job["folder"], ranks, {})
        cell = _next_cell(line, job, lines)
        report = _watch_cell(line, job["folder"], cell, ranks, lines)


def _next_cell(line, job, lines):
    """Read a cell, give it to its ranks, return it."""
    with line.makefile("rb") as file:
        cell = pickle.load(file)
    cell["world_size"] = job["world_size"]
    if "code" in cell:
        text = cell["code"]
        linecache.cache[cell["name"]] = len(text), None, text.splitlines(True), ""
    write(job["folder"], "cell", pickle.dumps(cell))
    for rank in cell["ranks"]:
        with contextlib.suppress(OSError):  # it has died: that is seen below
            lines[rank].send(b".")
    return cell


def _watch_cell(line, folder, cell, ranks, lines):
    """Wait until all have answered, or cannot; return what to report to the kernel."""
    waiting, ended, lost, deaf, looks = set(cell["ranks"]), {}, {}, set(), []
    end, look = time.monotonic() + cell["timeout"], None
    while waiting and (now := time.monotonic()) < end:
        ready = wait([line, *(lines[rank] for rank in waiting - deaf)], 0.02)
        if line in ready:
            raise EOFError("the kernel hung up")
        for rank in [rank for rank in waiting if lines[rank] in ready]:
            (waiting.discard if _said(lines[rank]) else deaf.add)(rank)
        for rank in [*ranks, *ranks]:  # twice: who ended meanwhile ended together
            if rank in ended or (code := processes.ended(ranks[rank])) is None:
                continue
            if not ended:
                end = min(end, now + nursery.GRACE)
            ended[rank] = now, code
        waiting -= ended.keys()
        verdict.trim(folder, ranks, lost)
        if look is None and glob.glob(f"{glob.escape(folder)}/error-*"):
            look = now + LOOK
        if waiting and not ended and look and now > look:
            looks.append(_look(folder, ranks, waiting))
            if looks[-1] in looks[:-1] and fault.waiting(looks[-1][0]):
                break  # nothing moves any more: no need to wait until time is up
            look = now + LOOK
    places = _look(folder, ranks, waiting)[0] if waiting and not ended else {}
    job = {**cell, "ranks": sorted({*cell["ranks"], *ended})}
    report = {
        "printed": verdict.printed(folder, len(ranks), lost),
        "results": fault.judge(folder, job, ended, places),
        "over": bool(waiting or ended),
    }
    _clear(folder)
    return report


def _said(line):
    with contextlib.suppress(OSError):
        return line.recv(1)


def _look(folder, ranks, waiting):
    """Return where these ranks are, and the time that each rank has computed for."""
    done = ranks.keys() - waiting
    for rank in waiting:
        os.truncate(f"{folder}/stack-{rank}", 0)
    return (
        nursery.ask_where(folder, ranks, done),
        [processes.computed(pid) for pid in ranks.values()],
    )


def _clear(folder):
    """Make room for the next cell's results, errors and prints."""
    for path in glob.glob(f"{glob.escape(folder)}/*-*"):
        if os.path.basename(path).startswith(("out", "err-", "stack")):
            os.truncate(path, 0)
        elif not os.path.basename(path).startswith("joined"):
            os.remove(path)
