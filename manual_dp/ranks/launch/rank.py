"""What a rank does between its fork and its end; `run_rank` never returns.

Files in the launch's folder, R is a rank:

    store      where the ranks meet (torch's FileStore)
    joined-R   empty: the rank has opened the process group
    result-R   what the function returned, pickled
    error-R    as JSON: time, cause, text, traceback, peer, where
    out-R, err-R   what it printed
    stack-R    where it was when time was up, or when it crashed

joined, result and error are written whole or not at all. An error that no file takes
goes into memory that the rank shares with the warden: job["notes"][R].
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

# What gloo says when another rank has gone. That rank's end is the cause, not this.
PEER = re.compile(
    r"gloo(.|\n)*(by peer|Broken pipe|pair closure|Timed out waiting"
    r"|connectFullMesh)|clients joined|ncclRemoteError"
)
NOTE = 1000  # bytes of memory for an error that no file takes
STAY = 0.5  # seconds that a finished rank keeps its connections open for the others


def run_rank(rank, job):
    """Join the group, call the function, leave a result or an error, and end."""
    folder, code, done = job["folder"], 1, False
    try:
        try:
            setup_rank(rank, job, folder)
            function, args = pickle.loads(job["call"])
            join_group(rank, job, folder)
            result = call(function, args)
            complaint = f"the result, a {type(result).__name__}, cannot be sent back"
            write(folder, f"result-{rank}", pack(result, complaint))
            code, done = 0, True
        except SystemExit as error:
            code = system_exit_code(error)
        except BaseException as error:
            write_error(rank, job, error)
        close_group(job["world_size"], folder, wait=done)
    finally:  # or this fork would go on with the warden's own code
        os._exit(code & 0xFF)


def setup_rank(rank, job, folder):
    """Set up a forked process as a rank: it dies with the warden, prints to files.

    It leads a session of its own, which the warden kills with all that is in it. It has
    the caller's environment, import path and working directory, one thread, its seed.
    """
    warden = os.getppid()
    os.setsid()
    processes.die_with_parent()
    if os.getppid() != warden:  # the warden died before die_with_parent was called
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
    tempfile.tempdir = None  # so that it is read anew from TMPDIR
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # or all ranks would draw the same, as forks of one process
    random.seed(rank)
    if "numpy" in sys.modules:  # torch has imported numpy if it is installed
        sys.modules["numpy"].random.seed(rank)


def join_group(rank, job, folder):
    """Open the process group; wait until every rank has opened it."""
    if job["backend"] == "nccl":
        torch.cuda.set_device(rank)
    # later than the warden's deadline, whose error says more about a hang than gloo's
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
    # The others may still be connecting: a rank that ended now would break that off.
    write(folder, f"joined-{rank}", b"")
    wait_for_files(folder, "joined", job["world_size"], math.inf)


def call(function, args):
    """Call the function; end here any copy of this process that it has forked."""
    me, code = os.getpid(), 1
    try:
        return function(*args)
    except BaseException as error:
        if os.getpid() != me:  # a copy's error is printed: nothing else reports it
            if isinstance(error, SystemExit):
                code = system_exit_code(error)
            else:
                traceback.print_exception(error)
        raise
    finally:
        if os.getpid() != me:  # or a copy would write a result as if it were the rank
            flush()
            os._exit(code & 0xFF)


def system_exit_code(error):
    """Return the exit code that Python gives a SystemExit; print its text, if any."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def pack(value, complaint):
    """Return the bytes that cloudpickle makes of `value`; TypeError if it cannot."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing):
            if isinstance(thing, types.CodeType):  # keeps its file, for tracebacks
                return marshal.loads, (marshal.dumps(thing),)
            return super().reducer_override(thing)

    packed = io.BytesIO()
    try:
        Pickler(packed).dump(value)
        return packed.getvalue()
    except Exception as error:
        raise TypeError(f"{complaint}: {type(error).__name__}: {error}") from None


def describe_error(error, files=(__file__,)):
    """Return what the error says and where it was raised: a dict that JSON can hold.

    The outermost frames of the traceback are left out if they are in `files`.
    """
    frames = error.__traceback__
    while frames.tb_next and frames.tb_frame.f_code.co_filename in files:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    where = "a collective"
    for frame in traceback.extract_tb(frames):  # the outermost first
        in_torch = f"torch{os.sep}distributed" in frame.filename
        if frame.name == "backward" or (in_torch and frame.name != "wrapper"):
            where = frame.name
            break
    return {
        "time": time.monotonic(),
        "text": what,
        "traceback": text,
        "peer": from_peer(error),
        "cause": type(error).__name__,
        "where": where,
    }


def write_error(rank, job, error, describe=describe_error):
    """Write the error to a file; if that fails, to memory shared with the warden.

    It fails if the function has deleted the folder, filled the disk, used up all file
    descriptors, or replaced a builtin.
    """
    try:
        text = json.dumps(describe(error))
        write(job["folder"], f"error-{rank}", text.encode())
    except BaseException as why:
        note = (
            f": its error could not be written down ({why.__class__.__name__}: "
            f"{why}): {error.__class__.__name__}: {error}"
        )
        job["notes"][rank].write(note.encode(errors="replace")[:NOTE])
        raise  # past close_group: it may need files, too


def from_peer(error):
    """Return whether the error, or a cause of it, says that another rank is gone."""
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


def wait_for_files(folder, name, world_size, seconds):
    """Wait until every rank has written its file `name`-R, or time is up."""
    files = [f"{folder}/{name}-{rank}" for rank in range(world_size)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(map(os.path.exists, files)):
        time.sleep(0.001)


def close_group(world_size, folder, wait):
    """Close the connections to the other ranks.

    With `wait`, wait first until all have a result, STAY seconds at most: a rank that
    closed at once would cut off bytes that another has yet to read.
    """
    flush()
    if wait:
        wait_for_files(folder, "result", world_size, STAY)
    if dist.is_initialized():
        dist.destroy_process_group()


def flush():
    """Flush stdout and stderr: os._exit would drop what they hold."""
    for stream in (sys.stdout, sys.stderr):
        # the function may have closed it, or put something else there
        with contextlib.suppress(Exception):
            stream.flush()
