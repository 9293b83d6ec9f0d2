"""Ranks tell one another something over the group's store, and say what they wait for.

    exchange     what every rank says, in a list; NotTogether if some do not come
    Calls        a thread that writes this rank's last collective into a file when asked
    with_calls   run a function while such a thread is there
    ended        the finding for a run that ended before its time

No collective is disturbed: the store is that of the process group. What a rank called
last is told by torch's flight recorder, also while the rank hangs.
"""

import json
import os
import pickle
import re
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from manual_dp.audit2.report import finding
from manual_dp.ranks.launch.verdict import listed

TURNS = {}
UNEQUAL = ("GLHF", "size doesn't match", "size mismatch", "preamble.length")


class NotTogether(RuntimeError):
    """Say which ranks did not come."""


def exchange(name, value, timeout=30):
    """Return what all ranks hand in under this name, in rank order."""
    store = dist.PrefixStore(f"audit.{name}", dist.distributed_c10d._get_default_store())
    rank, turn = dist.get_rank(), TURNS.get(name, 0) + 1
    TURNS[name] = turn
    store.set(f"{turn}/{rank}", pickle.dumps(value))
    said, missing, end = [], [], time.monotonic() + timeout
    for other in range(dist.get_world_size()):
        left = max(0.05, end - time.monotonic())
        try:
            store.wait([f"{turn}/{other}"], timedelta(seconds=left))
        except RuntimeError:
            missing.append(other)
            continue
        said.append(pickle.loads(store.get(f"{turn}/{other}")))  # noqa: S301 (ours)
    if missing:
        raise NotTogether(f"{name}: {listed(missing)} did not come to call {turn} within"
                          f" {timeout:g} s")
    if turn > 1:
        store.delete_key(f"{turn - 1}/{rank}")  # all have read it: they are here
    return said


class Calls(threading.Thread):
    """Write this rank's last collective into `folder` when asked, or after some time.

    It is asked by a file called ask.
    """

    def __init__(self, folder, rank, seconds=None):
        super().__init__(daemon=True)
        self.folder, self.rank, self.seconds = Path(folder), rank, seconds
        self.done = threading.Event()

    def run(self):
        """Wait, and write."""
        end = time.monotonic() + (self.seconds or 10 ** 9)
        while not self.done.wait(0.3):
            if time.monotonic() > end or (self.folder / "ask").exists():
                try:
                    told = {"at": _stands(), "last": _last_call()}
                except Exception as error:  # noqa: BLE001 (a private call of torch's)
                    told = {"at": _stands(), "last": None, "why": str(error)}
                part = self.folder / f"part-{self.rank}"
                part.write_text(json.dumps(told))
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
    """Return [number, operation, sizes, line] of the last collective, None if none."""
    entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # noqa: S301
    entries = [one for one in entries.get("entries", ()) if not one.get("is_p2p")]
    if not entries:
        return None
    last = entries[-1]
    line = next((f"{os.path.basename(f['filename'])}, line {f['line']}"
                 for f in last["frames"] if _is_users(f["filename"])), "")
    return [last["collective_seq_id"], last["profiling_name"].split(":", 1)[-1],
            last["input_sizes"], line]


def _stands():
    """Return the user's line at which the main thread is."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}" \
        if frame else "?"


def _is_users(name):
    own = Path(__file__).parent.parent
    return not ("site-packages" in name or name.startswith((
        "<frozen", os.path.dirname(os.__file__), str(own / "ranks"),
        str(Path(__file__).parent))))


def told(folder):
    """Return a sentence for each rank that said what it called last."""
    says = []
    for path in sorted(Path(folder).glob("calls-*")):
        rank, here = path.name.removeprefix("calls-"), json.loads(path.read_text())
        at, last = here["at"], here["last"]
        if last is None:
            says.append(f"rank {rank} has called no collective; it stands at {at}")
            continue
        number, name, sizes, line = last
        of = f" of {sizes[0]}" if sizes and sizes[0] else ""
        stands = "" if at == line else f" (it stands at {at})"
        says.append(f"rank {rank}: collective {number} is {name}{of} in {line}{stands}")
    return says


def ended(error, folder):
    """Return the finding that a launch ended in; error: a RankError, or what is like it.

    folder: where ranks may have said what they called last.
    """
    text, rank = str(error).split("\n")[0], error.rank
    says = "; ".join(told(folder))
    if "DDP expects same model" in text:
        return finding("start-differs", text, rank)
    if "not used in producing loss" in str(error):
        return finding("not-trained", _unused(str(error)), rank)
    whole = str(error) + error.details
    if any(word in whole for word in UNEQUAL):
        return finding("mismatch", "ranks sent one another tensors of other sizes"
                       + (f": {says}" if says else f": {text}"), rank)
    if error.kind in ("hung", "left", "gone"):
        return finding("hang", says or text, rank)
    return finding("exception", text, rank)


def _unused(text):
    """Return DDP's error about parameters without a gradient in a line."""
    names = re.search(r"did not receive grad[^:]*: *([^\n]+)", text)
    return (f"no loss depends on {names[1].strip()}: " if names else
            "no loss depends on some parameters: ") + "DDP waits for their gradients"
