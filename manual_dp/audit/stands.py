"""Where does a rank stand, and does it wait for another one? What a hang is.

Nothing hangs as long as a rank computes, reads data, or sleeps: ranks hang when every
one of them waits in a collective, or has come to its end. What a rank called last is
told by torch's flight recorder, also while it waits.
"""

import json
import linecache
import os
import re
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

from manual_dp.audit.private import last_collective
from manual_dp.audit.report import finding, plural

LONG = 10  # times the timeout that a rank may compute in one place
HUNG = 4  # exit status of a rank that saw that all ranks wait
END = "<end>"  # where a rank stands whose script has ended
UNUSED = {  # DDP's sum of the step before never came to its end
    "cause": "this rank's loss does not use these layers, though another's may; or "
    "others took their place after wrapping",
    "repair": "DDP(..., find_unused_parameters=True) if ranks use different layers; "
    "freeze what none uses; change layers before DDP",
}
NO_CALL = "it has called no collective"
OTHER_MODEL = {  # DDP refused it
    "cause": "ranks built models of other shapes, or in another order: a vocabulary, "
    "a number of classes, or a configuration of their own",
    "repair": "build the model from what rank 0 read, or all ranks read alike",
    "see": "other-vocabulary",
}
OTHER_SHAPES = ("DDP expects same model", "appears not to match")
OTHER_SIZES = ("doesn't match expected size", "preamble.length")


class Standstill(threading.Thread):
    """Write where this rank stands into `folder` if it does not get on for long.

    seconds: how long. leaves: end the process once all ranks stand still. updates:
    returns how many updates of the weights there were. done: set it where the rank has
    nothing more to do.
    """

    def __init__(self, folder, rank, seconds, leaves=False, updates=int):
        super().__init__(daemon=True)
        self.path = Path(folder or "", f"stands-{rank}")
        self.seconds, self.leaves, self.updates = seconds, leaves, updates
        self.done = threading.Event()

    def run(self):
        """Look once a second."""
        seen, since, busy = None, 0, 0
        while not self.done.wait(1):
            frame = sys._current_frames().get(threading.main_thread().ident)
            now, quiet = (caller(frame), last_call()), time.monotonic() - since
            if now != seen:
                seen, since, busy = now, time.monotonic(), time.process_time()
                self.path.unlink(missing_ok=True)
            elif quiet > self.seconds:
                idle = (time.process_time() - busy) / quiet < 0.2
                waiting = waits(frame, idle) or quiet > LONG * self.seconds
                self.write(*now, waiting)
                if not self.leaves:
                    return
                if self._all_wait():
                    time.sleep(3)  # the others see it, too
                    os._exit(HUNG)

    def write(self, at=END, call="", waiting=True):
        """Write where the rank stands; without words: at its end."""
        text = json.dumps([at, call or last_call(), self.updates(), waiting])
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def _all_wait(self):
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        for rank in range(world_size):
            path = self.path.with_name(f"stands-{rank}")
            if not path.exists() or not json.loads(path.read_text())[3]:
                return False
        return True


def waits(frame, idle):
    """Return whether a rank that stands there waits for others.

    idle: does the process compute nothing?
    """
    name = frame.f_code.co_filename
    return (
        ".wait(" in linecache.getline(name, line_of(frame))
        or os.path.join("torch", "distributed") in name
        or (idle and os.path.join("site-packages", "torch") in name)
    )


def last_call():
    """Return what the last collective was, and the line that called it, as text."""
    last = last_collective()
    if last is None:
        return "what it called last is not known"
    if not last:
        return NO_CALL
    users = [one for one in last["frames"] if is_users(one["filename"])]
    line = place(users[0]["filename"], users[0]["line"]) if users else "torch"
    sizes = f" of {last['input_sizes'][0]}" if any(last["input_sizes"]) else ""
    name = last["profiling_name"].rpartition(":")[2]
    return f"collective {last['collective_seq_id']} is {name}{sizes} in {line}"


def ended(error, folder):
    """Return the finding that a launch ended in.

    error: a RankError. folder: where `Standstill` wrote.
    """
    text, whole = str(error).split("\n")[0], f"{error}\n{error.details}"
    paths = sorted(Path(folder).glob("stands-*[0-9]"))
    stands = {path.name.removeprefix("stands-"): path.read_text() for path in paths}
    stands = {rank: json.loads(text) for rank, text in stands.items()}
    says = ". ".join(f"rank {rank}: {_told(*one)}" for rank, one in stands.items())
    if any(word in whole for word in OTHER_SHAPES):
        words = text.rstrip(".") + _last_line(whole)
        return finding("start-differs", words, error.rank)._replace(**OTHER_MODEL)
    if "not used in producing loss" in whole:
        names = whole.partition("did not receive grad")[2].split("\n")[0]
        names = names.partition(":")[2]
        words = f"on rank {error.rank}, DDP still waits for the gradient of"
        return finding("not-trained", words + names, error.rank)._replace(**UNUSED)
    if any(word in whole for word in OTHER_SIZES):
        words = "a rank got what others sent for another collective: "
        says = says or text + _last_line(whole)
        return finding("mismatch", words + says, error.rank)
    places = {at for at, *_ in stands.values()}
    if error.kind == "left":  # the launcher saw that the others had finished
        places.add(END)
    waited = END in places and "Connection closed by peer" in whole
    if error.kind in ("hung", "left") or waited or places - {END}:
        if waited and str(error.rank) not in stands:
            says += f". rank {error.rank} waited for it{_last_line(whole)}"
        hang = finding("hang", says or text, error.rank)
        return hang._replace(**_why(list(stands.values()), places)) if places else hang
    died = finding("exception", text, error.rank)
    if "marked as ready twice" in whole or "ready only once" in whole:
        return died._replace(
            cause="a layer is used twice under reentrant checkpointing, or shared "
            "between two backwards: DDP counts each gradient once",
            repair="checkpoint(..., use_reentrant=False), or DDP(static_graph=True)",
        )
    if error.kind == "killed":
        return died._replace(
            cause="a signal ended the process: SIGKILL is often want of memory, others "
            "an error inside of a library",
            repair="read what it printed last; watch its memory",
        )
    if error.kind == "exited":
        return died._replace(
            cause="the script ended its process itself, as os._exit does",
            repair="find the call that ends it; the audit can look only until then",
        )
    return died


def _told(at, call, updates, _):
    if at == END:
        return f"came to its end, after {plural(updates, 'step')} (before that: {call})"
    stands = f"; it stands at {at}"
    if not at or call.endswith(f"in {at}"):
        stands = ""
    return f"{call}{stands}, after {plural(updates, 'step')}"


def _last_line(traceback):
    """Return the last line of the user's in a traceback, in words."""
    frames = re.findall(r'File "(.+?)", line (\d+)', traceback)
    lines = [place(name, line) for name, line in frames if is_users(name)]
    return f" at {lines[-1]}" if lines else ": see the traceback"


def _why(stands, places):
    """Return the cause of a hang, from where the ranks stand, and a repair."""
    if END in places:
        cause = (
            "a rank has come to its end, and others wait for it: it has fewer steps, "
            "skipped a minibatch, decided alone to stop, or left out a collective"
        )
        repair = (
            "DistributedSampler, of a stream islice or Join; decide together when to "
            "skip or stop: all_reduce a flag"
        )
        return {"cause": cause, "repair": repair, "see": "early-stop"}
    elif len(places) > 1:
        cause = (
            "ranks wait at different lines: only some come to one, as in "
            "`if rank == 0`, or some have left a loop before the others"
        )
        repair = (
            "let all ranks come to it, or none; evaluate model.module on rank 0; give "
            "all the same steps"
        )
    elif {call for _, call, *_ in stands} == {NO_CALL}:
        cause = (
            "no rank waits for another: this line waits for something else, such as "
            "input, a lock, a file, or sleep"
        )
        repair = "see what the line waits for, or give a longer --timeout"
        return {"cause": cause, "repair": repair, "see": ""}
    else:
        cause = (
            "ranks wait at one line, for different collectives: one of them left out a "
            "batch, or a backward, before"
        )
        repair = "let all ranks take the same steps"
    return {"cause": cause, "repair": repair}


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
    return place(frame.f_code.co_filename, line_of(frame)) if frame else ""


def line_of(frame):
    """Return the number of the line at which a frame is; it may be at none."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def place(path, line):
    """Return a file's name and the line; a notebook's cell has no name."""
    name = "a cell" if "ipykernel_" in path else os.path.basename(path)
    return f"{name}, line {line}"
