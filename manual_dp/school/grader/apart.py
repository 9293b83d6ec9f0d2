"""Programs of ranks that can know nothing of one another: a process for each rank.

    programs   the answer of a job, as a function that looks like the learner's own,
               and one that runs it once more
    Told       what a rank's process said of an error there

Where a learner's programs send each other messages, who counts them must see all that
passes from one to another. So each rank has a process, which runs the learner's cells
for itself and is told of its own tensor and of what is sent to it, nothing else: it has
no folder, no memory and no network with the others. What a program is given, yields and
leaves goes over a line as JSON; the process that counts runs none of its code.

What a system has that two processes could use to meet, such as locks on a file that
both may read, is no end of a list. So every rank runs once more, alone, when all others
have ended. It is sent what it was sent before, and must come to the same numbers.
"""

import json
import os
import signal
import tempfile
from multiprocessing.connection import Pipe

import torch

from manual_dp.ranks.launch.processes import follow
from manual_dp.school.grader.jail import clear, cut_off, part
from manual_dp.school.tools.plain import listed
from manual_dp.school.tools.run import LEFT
from manual_dp.school.tools.settings import changed, put, settings


class Told(Exception):
    """An error in another process; `said` holds what becomes of the reply."""

    def __init__(self, said):
        super().__init__(said.get("error"))
        self.said = said


def programs(job, define, describe, hide):
    """Return the answer to `job`, to be called on any rank, and what runs it again.

    define() runs the cells and returns the answer; describe(error) says what is told of
    an error there; hide(folder) leaves a process one folder. All ranks are forked
    before any has begun; none of them keeps the cases, nor those that run alone.
    """
    cases, told = job.pop("cases"), []
    job["cases"] = []
    cut_off()

    def start(rank):
        ours, theirs = Pipe()
        if (pid := os.fork()) == 0:
            try:
                cases.clear()
                told.clear()
                _be(rank, theirs, define, describe, hide)
            finally:
                os._exit(1)
        theirs.close()
        return ours, pid
    started = [start(rank) for rank in range(max(len(case["tensors"])
                                                 for case in cases))]
    told += [[] for _ in started]
    job["cases"] = cases

    def program(rank, world_size, own, *more):
        line = started[rank][0]
        begin = {"start": [rank, world_size, pack(own), *more]}
        reply = _ask(line, begin)
        if "strange" in reply:
            return _other(reply)
        told[rank].append([[begin], None])
        return _Program(line, own, job, told[rank][-1])

    def again():
        """Run each rank alone; raise Told where it comes to other numbers."""
        _end(started)
        for rank, scenes in enumerate(told[:]):
            alone = start(rank)
            if not all(_same(alone[0], *scene) for scene in scenes):
                raise Told({"error": f"Sealed: {ALONE.format(rank)}"})
            _end([alone])
    return program, again


ALONE = ("rank {}, run once more with what it was sent, comes to other numbers: a rank "
         "may use its own tensor and what arrives, and nothing else")


def _end(started):
    """End the processes of ranks, and what they have started."""
    for line, pid in started:
        line.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    clear()


def _same(line, messages, own):
    """Return whether a program that is sent this leaves the same numbers, if any."""
    if own is None:  # it was stopped
        return True
    try:
        *_, last = [_ask(line, message) for message in messages]
    except Told:
        return False
    return "left" in last and _alike(last["left"]["own"], own)


def _alike(one, other):
    """Return whether packed tensors are the same, but for an order of sums."""
    if isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other or one.get("shape") == other.get("shape") and all(
        abs(a - b) <= 1e-9 * max(1, abs(b))
        for a, b in zip(one["numbers"], other["numbers"], strict=True))


class _Program:
    """Stand for a generator in another process; what it changes there is in `job`."""

    def __init__(self, line, own, job, scene):
        self.line, self.own, self.job, self.scene = line, own, job, scene

    def send(self, arrived):
        """Return what the program yields next, as rounds.py asks for it."""
        message = {"send": None if arrived is None else pack(arrived)}
        self.scene[0].append(message)
        reply = _ask(self.line, message)
        if "left" not in reply:
            return _wish(reply["wish"])
        left = reply["left"]
        self.scene[1] = left["own"]
        if left["changed"]:
            self.job[LEFT] = left["changed"]
        for mine, other in zip(listed(self.own), listed(unpack(left["own"]))):
            if mine.shape == other.shape:
                mine.copy_(other)
        if isinstance(self.own, list):
            self.own[:] = unpack(left["list"])
        raise StopIteration(left["returned"] and unpack(left["returned"]))


def _ask(line, message):
    line.send_bytes(json.dumps(message).encode())
    reply = json.loads(line.recv_bytes())
    if "error" in reply:
        raise Told({"error": str(reply["error"]), "blank": reply.get("blank") is True})
    return reply


def _wish(wish):
    if wish is None or "strange" in wish:
        return wish and _other(wish)
    return wish["peer"], unpack(wish["message"])


def _other(strange):
    """Return an object of another type of that name, as rounds.py names it."""
    words = {"send": None} if strange.get("program") else {}
    return type(str(strange["strange"])[:40].replace("\0", ""), (), words)()


def pack(value):
    """Return a tensor, or a list of them, as JSON takes it."""
    if isinstance(value, (list, tuple)):
        return [pack(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return {"strange": type(value).__name__}
    return {"dtype": str(value.dtype).partition(".")[2], "shape": list(value.shape),
            "numbers": value.detach().cpu().flatten().tolist()}


def unpack(packed):
    """Return the tensor or the list that was packed."""
    if isinstance(packed, list):
        return [unpack(part) for part in packed]
    if "strange" in packed:
        return _other(packed)
    dtype = getattr(torch, str(packed["dtype"]))
    return torch.tensor(packed["numbers"], dtype=dtype).reshape(packed["shape"])


def _be(rank, line, define, describe, hide):
    """Be the process of a rank: run the cells, then programs as they are asked for."""
    follow()
    fd = line.fileno()
    os.closerange(3, fd)
    os.closerange(fd + 1, 1024)
    folder = tempfile.mkdtemp(prefix=f"rank-{rank}-", dir=os.getcwd())
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    part()
    hide(folder)
    running, answer, before = {}, None, settings()
    while True:
        message = json.loads(line.recv_bytes())
        try:
            answer = answer or define()
            reply = _move(message, answer, running)
            if "left" in reply:
                reply["left"]["changed"] = changed(before)
                put(before)
        except BaseException as error:
            reply = describe(error)
        line.send_bytes(json.dumps(reply).encode())


def _move(message, answer, running):
    """Begin a program, or let the running one take a step; return what to say of it."""
    if "start" in message:
        rank, world_size, own, *more = message["start"]
        kept = unpack(own)
        own = list(kept) if isinstance(kept, list) else kept
        program = answer(rank, world_size, own, *more)
        if not hasattr(program, "send"):
            return {"strange": type(program).__name__}
        running.update(program=program, kept=kept, own=own)
        return {}
    arrived = message["send"]
    try:
        wish = running["program"].send(arrived and unpack(arrived))
    except StopIteration as stop:
        whole = all(isinstance(part, torch.Tensor) for part in listed(stop.value))
        return {"left": {"own": pack(running["kept"]), "list": pack(running["own"]),
                         "returned": pack(stop.value) if whole else None}}
    return {"wish": _said(wish)}


def _said(wish):
    if wish is None:
        return None
    if isinstance(wish, tuple) and len(wish) == 2 and isinstance(wish[0], int):
        return {"peer": int(wish[0]), "message": pack(wish[1])}
    return {"strange": type(wish).__name__, "program": hasattr(wish, "send")}
