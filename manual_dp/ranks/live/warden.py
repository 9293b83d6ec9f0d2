"""The warden of ranks that stay: fork them, hand them cells, report what came of each.

watch_cells   fork the ranks; let them run a cell at a time, while all of them live
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
from manual_dp.ranks.live import cell_verdict
from manual_dp.ranks.live.cells import run_cells

START = 60  # seconds that all ranks together have to join the group
LOOK = 0.5  # seconds between two looks at ranks that wait while another has raised


def watch_cells(line, job, ranks):
    """Fork the ranks; report their start, then each cell that comes in by `line`.

    Return when a rank has died or hangs; EOFError if the kernel closes the line. The
    pids go into `ranks`, so that the caller (launch/nursery.py) can kill the ranks.
    """
    lines = {}  # to each rank a socket: a byte says that a cell is there, or is done
    for rank in range(job["world_size"]):
        ours, theirs = socket.socketpair()
        lines[rank] = ours
        pid = os.fork()
        if pid == 0:
            for other in lines.values():
                other.close()
            run_cells(rank, job, theirs)
        ranks[rank] = pid
        theirs.close()
    if not job["group"]:
        open(f"{job['folder']}/meeting", "x").close()
    start = {"ranks": list(ranks), "timeout": START, "world_size": len(ranks)}
    report = _wait_for_answers(line, job, start, ranks, lines)
    report["over"] = not isinstance(report["results"], list)
    while True:
        line.sendall(pickle.dumps(report))
        if report["over"]:
            return
        while not wait([line], 1):  # a thread of the last cell may go on printing
            verdict.trim_prints(job["folder"], ranks, {})
        cell = _hand_out_cell(line, job, lines)
        report = _wait_for_answers(line, job, cell, ranks, lines)


def _hand_out_cell(line, job, lines):
    """Read a cell from the line, give it to its ranks, return it."""
    with line.makefile("rb") as file:
        cell = pickle.load(file)
    cell["world_size"] = job["world_size"]
    if "code" in cell:
        text = cell["code"]
        # for errors, which quote the cell's lines
        linecache.cache[cell["name"]] = len(text), None, text.splitlines(True), ""
    write(job["folder"], "cell", pickle.dumps(cell))
    for rank in cell["ranks"]:
        with contextlib.suppress(OSError):  # it has died: _wait_for_answers sees that
            lines[rank].send(b".")
    return cell


def _wait_for_answers(line, job, cell, ranks, lines):
    """Wait until all ranks of the cell have answered, or one has died; return a report.

    Also return when time is up, or when one has raised and those left wait for ever.
    """
    folder, running, ended, lost = job["folder"], set(cell["ranks"]), {}, {}
    # ranks that have closed their socket, and whose process has not ended yet
    closed = set()
    end = time.monotonic() + cell["timeout"]
    looks, next_look = [], None
    while running and (now := time.monotonic()) < end:
        ready = wait([line, *(lines[rank] for rank in running - closed)], 0.02)
        if line in ready:
            raise EOFError("the kernel hung up")
        for rank in [rank for rank in running if lines[rank] in ready]:
            if _has_answered(lines[rank]):
                running.discard(rank)
            else:
                closed.add(rank)
        for rank in [*ranks, *ranks]:  # twice: see _watch_call in launch/nursery.py
            if rank in ended or (code := processes.exit_code(ranks[rank])) is None:
                continue
            if not ended:
                end = min(end, now + nursery.GRACE)
            ended[rank] = now, code
        running -= ended.keys()
        verdict.trim_prints(folder, ranks, lost)
        if next_look is None and glob.glob(f"{glob.escape(folder)}/error-*"):
            next_look = now + LOOK
        if running and not ended and next_look and now > next_look:
            looks.append(_look_at(folder, ranks, running))
            stacks, _ = looks[-1]
            if looks[-1] in looks[:-1] and cell_verdict.all_wait(stacks):
                break  # same stacks, no ticks more: they wait for the one that raised
            next_look = now + LOOK
    stacks = {}
    if running and not ended:
        stacks, _ = _look_at(folder, ranks, running)
    asked = sorted({*cell["ranks"], *ended})
    cell = {**cell, "ranks": asked, "notes": job["notes"]}
    report = {
        "printed": verdict.read_prints(folder, len(ranks), lost),
        "results": cell_verdict.outcome_of_cell(folder, cell, ended, stacks),
        "over": bool(running or ended),
    }
    _clear_folder(folder)
    return report


def _has_answered(line):
    """Read the byte that a rank sends when it is done; False if it closed its end."""
    with contextlib.suppress(OSError):
        return line.recv(1) != b""
    return False


def _look_at(folder, ranks, running):
    """Return the stacks of the running ranks, and the ticks that each rank computed."""
    done = ranks.keys() - running
    for rank in running:
        os.truncate(f"{folder}/stack-{rank}", 0)
    return (
        nursery.ask_stacks(folder, ranks, done),
        [processes.cpu_ticks(pid) for pid in ranks.values()],
    )


def _clear_folder(folder):
    """Remove the cell's results and errors, empty the files of output and stacks."""
    for path in glob.glob(f"{glob.escape(folder)}/*-*"):
        # "err-" with its dash: error-R is to be removed
        if os.path.basename(path).startswith(("out", "err-", "stack")):
            os.truncate(path, 0)
        elif not os.path.basename(path).startswith("joined"):
            os.remove(path)
