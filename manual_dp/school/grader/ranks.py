"""The ranks of a graded answer: `run_ranks` as in a notebook, but forked right here.

    run_ranks   one function, world_size processes, results in rank order
    RankError   what went wrong first, and in which rank

Child.py offers this as `manual_dp.ranks`. What a rank returns must fit into JSON. A
RankError is "raised", "exited" without a result, or "hung".
"""

import datetime
import json
import os
import signal
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import wait

import torch.distributed as dist

from manual_dp.ranks.launch.verdict import RankError


def run_ranks(function, world_size, *args, timeout=60, backend="gloo"):
    """Call `function(*args)` on `world_size` ranks; return their results by rank."""
    folder = tempfile.mkdtemp(dir=".")
    lines, pids, results, end = [], [], {}, time.monotonic() + timeout
    try:
        for rank in range(world_size):
            line, theirs = Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                _be(rank, world_size, folder, theirs, timeout, function, args)
            theirs.close()
            lines.append(line)
            pids.append(pid)
        while missing := [line for line in lines if line not in results]:
            ready = wait(missing, max(0, end - time.monotonic()))
            if not ready:
                late = [lines.index(line) for line in missing]
                raise RankError(f"ranks {late} had not finished after {timeout} s: "
                                "do all ranks call the same collectives?", late[0],
                                kind="hung")
            for line in ready:
                results[line] = _result(line, lines.index(line))
        return [results[line] for line in lines]
    finally:
        for line, pid in zip(lines, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            line.close()


def _result(line, rank):
    try:
        result = json.loads(line.recv_bytes())
    except EOFError:
        raise RankError(f"rank {rank} ended without a result", rank,
                        kind="exited") from None
    if "out" in result:
        return result["out"]
    if result["blank"]:
        raise NotImplementedError
    raise RankError(f"rank {rank} raised {result['error']}", rank, kind="raised",
                    cause=result["cause"])


def _be(rank, world_size, folder, line, timeout, function, args):
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
        seconds = datetime.timedelta(seconds=timeout + 30)
        store = dist.FileStore(f"{folder}/store", world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size,
                                timeout=seconds)
        text = json.dumps({"out": function(*args)})
    except BaseException as error:
        cause = type(error).__name__
        text = json.dumps({"error": f"{cause}: {error}"[:500], "cause": cause,
                           "blank": isinstance(error, NotImplementedError)})
    try:
        line.send_bytes(text.encode())
        while True:  # until it is killed, so that no connection breaks
            signal.pause()
    finally:
        os._exit(1)
