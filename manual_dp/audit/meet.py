"""Ranks tell one another something over the group's store, and say what they wait for.

No collective is disturbed: the store is that of the process group. What a rank called
last is told by torch's flight recorder, also while the rank hangs.
"""

import json
import os
import pickle
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from manual_dp.audit.report import finding, so_many
from manual_dp.ranks.launch.verdict import ranks_in_words

TURNS = {}
START = 120  # seconds until the first collective: a busy machine takes long
NONE = "it has called no collective"
OTHER_SIZES = ("GLHF", "doesn't match expected size", "preamble.length")


def exchange(name, value, timeout=30):
    """Return what all ranks hand in under this name, in rank order.

    Raises RuntimeError if some do not come in time.
    """
    group = dist.distributed_c10d
    store = dist.PrefixStore(f"audit.{name}", group._get_default_store())
    rank, turn, end = dist.get_rank(), TURNS.get(name, 0) + 1, time.time() + timeout
    TURNS[name] = turn
    store.set(f"{turn}/{rank}", pickle.dumps(value))
    said, missing = [], []
    for other in range(dist.get_world_size()):
        try:
            store.wait(
                [f"{turn}/{other}"], timedelta(seconds=max(0.05, end - time.time()))
            )
            said.append(pickle.loads(store.get(f"{turn}/{other}")))  # noqa: S301 (ours)
        except RuntimeError:
            missing.append(other)
    if missing:
        raise RuntimeError(
            f"{name}: {ranks_in_words(missing)} did not come to call {turn} "
            f"within {timeout:g} s"
        )
    if turn > 1:
        store.delete_key(f"{turn - 1}/{rank}")  # all have read it: they are here
    return said


class Calls(threading.Thread):
    """Write this rank's last collective into `folder` if none is new for some seconds.

    leaves: end the process then. done: set it where the rank has nothing more to do.
    count: returns how many updates of the weights there were.
    """

    def __init__(self, folder, rank, seconds, leaves=False, count=int):
        super().__init__(daemon=True)
        self.path = Path(folder or "", f"calls-{rank}")
        self.seconds, self.leaves, self.count = seconds, leaves, count
        self.done = threading.Event()

    def run(self):
        """Look once a second."""
        seen, since = None, time.monotonic()
        while not self.done.wait(1):
            frame = sys._current_frames().get(threading.main_thread().ident)
            now = caller(frame), last_call()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() > since + max(self.seconds, START * (now[1] == NONE)):
                self.path.write_text(json.dumps([*now, self.count()]))
                if self.leaves:
                    time.sleep(3)  # the others write, too
                    os._exit(4)
                return


def last_call():
    """Return what the last collective was, and the line that called it, as text."""
    try:
        log = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # noqa: S301
    except (AttributeError, RuntimeError):  # an older torch
        return "what it called last is not known"
    last = [one for one in log.get("entries", ()) if not one.get("is_p2p")][-1:]
    if not last:
        return NONE
    [last] = last
    line = next(
        (
            place(frame["filename"], frame["line"])
            for frame in last["frames"]
            if is_users(frame["filename"])
        ),
        "torch",
    )
    sizes = f" of {last['input_sizes'][0]}" if any(last["input_sizes"]) else ""
    name = last["profiling_name"].rpartition(":")[2]
    return f"collective {last['collective_seq_id']} is {name}{sizes} in {line}"


def ended(error, folder):
    """Return the finding that a launch ended in.

    error: a RankError, or what is like it. folder: of `Calls`.
    """
    text, whole = str(error).split("\n")[0], f"{error}\n{error.details}"
    says = []
    for path in sorted(Path(folder).glob("calls-*")):
        at, call, count = json.loads(path.read_text())
        stands = (
            ""
            if not at or call.endswith(f"in {at}")
            else (
                "; it came to its end" if at.startswith("<") else f"; it stands at {at}"
            )
        )
        rank = path.name.removeprefix("calls-")
        says.append(f"rank {rank}: {call}{stands}, after {so_many(count, 'update')}")
    if "DDP expects same model" in whole:
        return finding("start-differs", text, error.rank)
    if "not used in producing loss" in whole:
        names = whole.partition("did not receive grad")[2].split("\n")[0]
        return finding(
            "not-trained",
            "no loss depends on some parameters, and DDP "
            f"waits for them:{names.partition(':')[2]}",
            error.rank,
        )
    if any(word in whole for word in OTHER_SIZES):
        return finding(
            "mismatch",
            "a rank got what others sent for another collective"
            f": {'. '.join(says) or text}",
            error.rank,
        )
    code = "hang" if says or error.kind in ("hung", "left") else "exception"
    return finding(code, ". ".join(says) or text, error.rank)


def is_users(name):
    """Return whether a file is neither Python's, nor a library's, nor the audit's."""
    own = os.path.dirname(__file__)
    ranks = os.path.join(os.path.dirname(own), "ranks")
    return "site-packages" not in name and not name.startswith(
        ("<frozen", os.path.dirname(os.__file__), own, ranks)
    )


def caller(frame=None):
    """Return the file and line of the user's that is at work."""
    frame = frame or sys._getframe(1)
    while frame and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def place(path, line):
    """Return a file's name and the line; a notebook's cell has no name."""
    name = "a cell" if "ipykernel_" in path else os.path.basename(path)
    return f"{name}, line {line}"
