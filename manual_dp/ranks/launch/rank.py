"""What a rank does between its fork and its end; never returns.

Files in the launch's folder, each written whole or not at all:

    store      where the ranks meet (torch's FileStore)
    joined-R   empty: the rank has met the others
    result-R   what the function returned, pickled
    error-R    as JSON: time, cause, text, traceback, peer, where
    out-R, err-R, stack-R   what it printed; where it was when time was up

An error that cannot be written down goes into memory: job["notes"][R].
"""

import contextlib
import datetime
import faulthandler
import io
import json
import marshal
import math
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import types

import torch
import torch.distributed as dist

from manual_dp.ranks.launch import processes

# What gloo says when another rank has gone: a consequence, not a cause.
PEER = re.compile(
    r"gloo(.|\n)*(by peer|Broken pipe|pair closure|Timed out waiting"
    r"|connectFullMesh)|clients joined|ncclRemoteError"
)
NOTE = 1000  # bytes for an error that cannot be written down
LAST = 0.5  # seconds that a finished rank keeps its connections open for the others


def run(rank, job):
    """Join the group, call the function, leave a result or an error, and end."""
    folder, code, done = job["folder"], 1, False
    try:
        try:
            move_in(rank, job, folder)
            function, args = pickle.loads(job["call"])
            join(rank, job, folder)
            result = call(function, args)
            write(
                folder,
                f"result-{rank}",
                pack(
                    result,
                    f"the result, a {type(result).__name__}, cannot be sent back",
                ),
            )
            code, done = 0, True
        except SystemExit as error:
            code = exit_code(error)
        except BaseException as error:
            leave_error(rank, job, folder, error)
        leave(job["world_size"], folder, wait=done)
    finally:  # whatever else may happen: the code after this is the warden's
        os._exit(code & 0xFF)


def move_in(rank, job, folder):
    """Make the fork a rank: it dies with the warden, and prints to files."""
    warden = os.getppid()
    os.setsid()
    processes.follow()
    if os.getppid() != warden:  # it died before that
        os._exit(1)
    for name, number in (("out", 1), ("err", 2)):
        fd = os.open(f"{folder}/{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
    stack = open(f"{folder}/stack-{rank}", "a")
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    faulthandler.enable(stack, all_threads=False)
    os.environ.clear()
    os.environ.update(
        job["environ"],
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job["world_size"]),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo" if sys.platform == "linux" else "lo0",
    )
    sys.path[:] = job["path"]
    os.chdir(job["cwd"])
    tempfile.tempdir = None  # as TMPDIR says now
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # or every rank would draw what the nursery would
    random.seed(rank)
    if "numpy" in sys.modules:  # torch imports it, where there is one
        sys.modules["numpy"].random.seed(rank)


def join(rank, job, folder):
    """Open the process group, and wait until every rank has."""
    if job["backend"] == "nccl":
        torch.cuda.set_device(rank)
    # past the warden's deadline: it says more about a hang than gloo does
    timeout = datetime.timedelta(seconds=job["timeout"] + 30)
    store = dist.FileStore(f"{folder}/store", job["world_size"])
    store.set_timeout(timeout)
    dist.init_process_group(
        job["backend"],
        store=store,
        rank=rank,
        world_size=job["world_size"],
        timeout=timeout,
    )
    # Connections are made one after another: who left now would break off the others'.
    write(folder, f"joined-{rank}", b"")
    meet(folder, "joined", job["world_size"], math.inf)


def call(function, args):
    """Call the function; a copy of the process that it forks ends here."""
    me, code = os.getpid(), 1
    try:
        return function(*args)
    except BaseException as error:
        if os.getpid() != me:  # said here: nobody else hears of it
            if isinstance(error, SystemExit):
                code = exit_code(error)
            else:
                traceback.print_exception(error)
        raise
    finally:
        if os.getpid() != me:  # a copy that the function has forked is not the rank
            flush()
            os._exit(code & 0xFF)


def exit_code(error):
    """Return the exit code that Python gives a SystemExit, and say what it says."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def pack(value, complaint):
    """Return the bytes that cloudpickle makes of `value`; TypeError if it cannot."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing):
            if isinstance(thing, types.CodeType):  # with its file, for tracebacks
                return marshal.loads, (marshal.dumps(thing),)
            return super().reducer_override(thing)

    packed = io.BytesIO()
    try:
        Pickler(packed).dump(value)
        return packed.getvalue()
    except Exception as error:
        raise TypeError(f"{complaint}: {type(error).__name__}: {error}") from None


def describe(error, files=(__file__,)):
    """Return what the error says and where, as JSON takes it; `files` are left out."""
    frames = error.__traceback__
    while frames.tb_next and frames.tb_frame.f_code.co_filename in files:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    where = [
        frame.name
        for frame in traceback.extract_tb(frames)
        if f"torch{os.sep}distributed" in frame.filename
        and frame.name != "wrapper"
        or frame.name == "backward"
    ]
    return {
        "time": time.monotonic(),
        "text": what,
        "traceback": text,
        "peer": from_peer(error),
        "cause": type(error).__name__,
        "where": where[0] if where else "a collective",
    }


def leave_error(rank, job, folder, error):
    """Write the error down; where that fails, say so in memory shared with the warden.

    The folder may be gone or full, no file be left to open, a builtin be replaced.
    """
    try:
        write(folder, f"error-{rank}", json.dumps(describe(error)).encode())
    except BaseException as why:
        note = (
            f": its error could not be written down ({why.__class__.__name__}: "
            f"{why}): {error.__class__.__name__}: {error}"
        )
        job["notes"][rank].write(note.encode(errors="replace")[:NOTE])
        raise  # and end: to leave the group needs files, too


def from_peer(error):
    """Return whether error, or one that it was raised from, tells of another rank."""
    seen = set()
    while error is not None and id(error) not in seen:
        text = "".join(traceback.format_exception_only(type(error), error))
        told = isinstance(error, RuntimeError) and PEER.search(text)
        if told or getattr(error, "peer", None) is True:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def write(folder, name, data):
    """Write a file whole or not at all."""
    with open(f"{folder}/.{name}", "wb") as file:
        file.write(data)
    os.replace(f"{folder}/.{name}", f"{folder}/{name}")


def meet(folder, name, world_size, seconds):
    """Wait until every rank has left a file of this name, or time is up."""
    files = [f"{folder}/{name}-{rank}" for rank in range(world_size)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(map(os.path.exists, files)):
        time.sleep(0.001)


def leave(world_size, folder, wait):
    """Close the connections; after success, when all have a result or LAST has passed.

    A rank that closed at once would cut off bytes that another has yet to read.
    """
    flush()
    if wait:
        meet(folder, "result", world_size, LAST)
    if dist.is_initialized():
        dist.destroy_process_group()


def flush():
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # the function may have closed it, or put something else there
        with contextlib.suppress(Exception):
            stream.flush()
