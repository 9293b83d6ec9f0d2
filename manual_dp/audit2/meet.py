"""Ranks tell one another something over the group's store, and say what they wait for.

    exchange     what every rank says, in a list; NotTogether if some do not come
    Calls        a thread that writes this rank's last collective into a file when asked
    with_calls   run a function while such a thread is there
    told         what these files say
    ended        the finding for a run that ended before its time

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

from manual_dp.audit2.record import caller, is_users
from manual_dp.audit2.report import finding
from manual_dp.ranks.launch.verdict import listed

TURNS = {}
OTHER_SIZES = ("GLHF", "doesn't match expected size", "preamble.length")


class NotTogether(RuntimeError):
    """Say which ranks did not come."""


def exchange(name, value, timeout=30):
    """Return what all ranks hand in under this name, in rank order."""
    store = dist.PrefixStore(f"audit.{name}", dist.distributed_c10d._get_default_store())
    rank, turn, end = dist.get_rank(), TURNS.get(name, 0) + 1, time.time() + timeout
    TURNS[name] = turn
    store.set(f"{turn}/{rank}", pickle.dumps(value))
    said, missing = [], []
    for other in range(dist.get_world_size()):
        try:
            store.wait([f"{turn}/{other}"],
                       timedelta(seconds=max(0.05, end - time.time())))
            said.append(pickle.loads(store.get(f"{turn}/{other}")))  # noqa: S301 (ours)
        except RuntimeError:
            missing.append(other)
    if missing:
        raise NotTogether(f"{name}: {listed(missing)} did not come to call {turn} within"
                          f" {timeout:g} s")
    if turn > 1:
        store.delete_key(f"{turn - 1}/{rank}")  # all have read it: they are here
    return said


class Calls(threading.Thread):
    """Write this rank's last collective into `folder`, once there is a file called ask.

    seconds: after so many it does so unasked.
    """

    def __init__(self, folder, rank, seconds=threading.TIMEOUT_MAX):
        super().__init__(daemon=True)
        self.folder, self.rank, self.seconds = Path(folder), rank, seconds
        self.done = threading.Event()

    def run(self):
        """Wait, and write."""
        end = time.monotonic() + self.seconds
        while not self.done.wait(0.3):
            if time.monotonic() > end or (self.folder / "ask").exists():
                frame = sys._current_frames().get(threading.main_thread().ident)
                part = self.folder / f"part-{self.rank}"
                part.write_text(json.dumps([caller(frame), _last_call()]))
                part.rename(self.folder / f"calls-{self.rank}")
                return


def with_calls(folder, seconds, function, *args):
    """Call the function; if it takes longer than `seconds`, this rank's call is told."""
    calls = Calls(folder, dist.get_rank(), seconds)
    calls.start()
    try:
        return function(*args)
    finally:
        calls.done.set()


def _last_call():
    """Return what the last collective was, and the line that called it, as text."""
    try:
        log = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # noqa: S301
    except (AttributeError, RuntimeError):  # an older torch
        return "what it called last is not known"
    last = [one for one in log.get("entries", ()) if not one.get("is_p2p")][-1:]
    if not last:
        return "it has called no collective"
    [last] = last
    line = next((f"{os.path.basename(frame['filename'])}, line {frame['line']}"
                 for frame in last["frames"] if is_users(frame["filename"])), "torch")
    sizes = f" of {last['input_sizes'][0]}" if any(last["input_sizes"]) else ""
    name = last["profiling_name"].rpartition(":")[2]
    return f"collective {last['collective_seq_id']} is {name}{sizes} in {line}"


def told(folder):
    """Return a sentence for each rank that said what it called last."""
    says = []
    for path in sorted(Path(folder).glob("calls-*")):
        at, call = json.loads(path.read_text())
        stands = f"; it stands at {at}" if at and not call.endswith(f"in {at}") else ""
        says.append(f"rank {path.name.removeprefix('calls-')}: {call}{stands}")
    return says


def ended(error, folder):
    """Return the finding that a launch ended in.

    error: a RankError, or what is like it. folder: of `Calls`.
    """
    text, whole = str(error).split("\n")[0], f"{error}\n{error.details}"
    says = ". ".join(told(folder)) or text
    if "DDP expects same model" in whole:
        return finding("start-differs", text, error.rank)
    if "not used in producing loss" in whole:
        names = whole.partition("did not receive grad")[2].split("\n")[0]
        return finding("not-trained", "no loss depends on some parameters, and DDP waits"
                       " for their gradients" + names.partition(":")[2], error.rank)
    if any(word in whole for word in OTHER_SIZES):
        return finding("mismatch", "ranks are in different collectives, and got what "
                       f"others sent for another one: {says}")
    code = "hang" if error.kind in ("hung", "left") else "exception"
    return finding(code, says if code == "hang" else text, error.rank)
