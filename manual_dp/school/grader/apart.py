"""Programs of ranks that can know nothing of one another: a process for each rank.

    programs   the answer of a job, as a function that looks like the learner's own
    Told       what a rank's process said of an error there

Where a learner's programs send each other messages, who counts them must see all that
passes from one to another. So each rank has a process, which runs the learner's cells
for itself and is told of its own tensor and of what is sent to it, nothing else: it has
no folder, no memory and no network with the others. What a program is given, yields and
leaves goes over a line as JSON; the process that counts runs none of its code.
"""

import json
import os
from multiprocessing.connection import Pipe

import torch

from manual_dp.ranks.launch.processes import follow
from manual_dp.school.grader.jail import cut_off, part
from manual_dp.school.tools.plain import listed
from manual_dp.school.tools.run import LEFT
from manual_dp.school.tools.settings import changed, put, settings


class Told(Exception):
    """An error in another process; `said` holds what becomes of the reply."""

    def __init__(self, said):
        super().__init__(said.get("error"))
        self.said = said


def programs(job, define, describe, hide):
    """Return the answer to `job`, to be called on any rank.

    define() runs the cells and returns the answer; describe(error) says what is told of
    an error there; hide(folder) leaves a process one folder. All forks are made before
    any rank has begun, and none of them keeps the cases.
    """
    cases, lines = job.pop("cases"), []
    job["cases"] = []
    cut_off()
    for rank in range(max(len(case["tensors"]) for case in cases)):
        ours, theirs = Pipe()
        if os.fork() == 0:
            try:
                cases.clear()
                _be(rank, theirs, define, describe, hide)
            finally:
                os._exit(1)
        theirs.close()
        lines.append(ours)
    job["cases"] = cases

    def program(rank, world_size, own, *more):
        line = lines[rank]
        started = _ask(line, {"start": [rank, world_size, pack(own), *more]})
        return _other(started) if "strange" in started else _Program(line, own, job)
    return program


class _Program:
    """Stand for a generator in another process; what it changes there is in `job`."""

    def __init__(self, line, own, job):
        self.line, self.own, self.job = line, own, job

    def send(self, arrived):
        """Return what the program yields next, as rounds.py asks for it."""
        reply = _ask(self.line, {"send": None if arrived is None else pack(arrived)})
        if "left" not in reply:
            return _wish(reply["wish"])
        left = reply["left"]
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
    folder = f"{os.getcwd()}/rank-{rank}"
    os.mkdir(folder)
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
