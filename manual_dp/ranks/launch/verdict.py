"""Say what happened in a launch: the cause first, not what followed from it.

    RankError  what went wrong first, and in which rank
    judge      the results, or the error
    finished   whether a rank has left a result
    frames_of  the frames of a rank's stack; waits_in: what it waits in, if it does
    listed     ranks as text
    printed    what the ranks printed; trim it when it is too much, echo it here

Causes in this order: what happened first of an exception of a rank's own and an end
without a result (signal, exit code), a rank that is still running at the deadline,
and only then an exception that says that some other rank is gone.
"""

import contextlib
import json
import linecache
import os
import re
import signal
import sys

from manual_dp.ranks.launch.processes import signal_name

PRINTED = 10**6  # bytes of a rank's output that reach the kernel
STORED = 2**26  # bytes of it that are kept until then: a disk ends somewhere


class RankError(RuntimeError):
    """Say what went wrong first, and in which rank; as text, and as data.

    kind: "raised", "killed" (by a signal), "exited" (without a result), "hung" (time
    was up), "left" (it waited for ranks that were gone), "unreadable" (its result), or
    "lost" (the launch itself). rank: its number, None if it is nobody's fault. where:
    the function in which it was, if it did not end by itself. cause: the name of the
    exception's class, if it raised. details: a traceback, or where each rank was.
    """

    def __init__(
        self, message, rank=None, details="", kind="lost", where=None, cause=None
    ):
        super().__init__(message)
        self.rank, self.details = rank, details
        self.kind, self.where, self.cause = kind, where, cause
        if details and hasattr(self, "add_note"):  # Python 3.11
            self.add_note(details)


def judge(folder, job, ended, places, late=None):
    """Return the results by rank, pickled, or the RankError.

    ended: (time, exit status) by rank, status minus the number for a signal; a rank
    that had to be killed is missing. places: for these, after the deadline, the
    process's state and where they were; late makes the error of these.
    """
    ranks = job.get("ranks", range(job["world_size"]))
    done = [rank for rank in ranks if finished(folder, rank)]
    if len(done) == len(ranks):
        return [read(folder, f"result-{rank}") for rank in ranks]
    errors = {
        rank: json.loads(text)
        for rank in ranks
        if (text := read(folder, f"error-{rank}"))
    }
    own = {rank: error for rank, error in errors.items() if not error["peer"]}
    # an abort last: gloo aborts when another's connections close, which they do a
    # little before that rank's own end can be seen
    ends = sorted(
        (code == -signal.SIGABRT, time, code >= 0, rank, code)
        for rank, (time, code) in ended.items()
        if rank not in errors and rank not in done
    )
    first = min(own.values(), key=lambda error: error["time"], default=None)
    if first and (not ends or first["time"] <= ends[0][1]):
        # of several that met with the same, the lowest rank
        rank = min(rank for rank in own if own[rank]["cause"] == first["cause"])
        place = own[rank].get("place")
        return RankError(
            f"rank {rank} raised {own[rank]['text']}"
            + (f" ({place})" if place else ""),
            rank,
            own[rank]["traceback"],
            "raised",
            place,
            first["cause"],
        )
    if ends:
        *_, rank, code = ends[0]
        kind, how = _ending(code)
        return RankError(
            f"rank {rank} {how}{_note(job, rank)}",
            rank,
            _last_words(folder, rank),
            kind,
        )
    if places:
        return (late or _late)(job["timeout"], places)
    rank = min(errors)
    others = f"{listed(done)} had finished" if done else "another rank was gone"
    where = errors[rank]["where"]
    return RankError(
        f"rank {rank} was still waiting in {where} when {others}",
        rank,
        errors[rank]["traceback"],
        "left",
        where,
    )


def finished(folder, rank):
    """Return whether the rank has left a result."""
    return os.path.exists(f"{folder}/result-{rank}")


def read(folder, name):
    """Return a file's bytes, none if it is not there: not yet, or not any more."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def stack_of(folder, rank):
    """Return where a rank was, as faulthandler wrote it: what is not ASCII, escaped."""
    text = read(folder, f"stack-{rank}").decode(errors="replace")
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda found: chr(int(found[found.lastindex], 16)),
        text,
    )


def _ending(code):
    if code < 0:
        return "killed", f"was killed by {signal_name(-code)}"
    if code == 0:
        return "exited", "exited without returning a result (exit code 0)"
    return "exited", f"exited with code {code}"


def _note(job, rank):
    """Return what a rank said that could not write its error down, if it did."""
    note = job["notes"][rank][:] if "notes" in job else b""  # ranks that stay have none
    return note.rstrip(b"\0").decode(errors="ignore")


def _last_words(folder, rank):
    text = read(folder, f"err-{rank}")[-4000:].decode(errors="replace")
    return (text + stack_of(folder, rank)).partition("\nExtension modules")[0]


def _late(timeout, places):
    """Name the rank that holds up the others, and say where each was."""
    frames = {rank: frames_of(text) for rank, (_, text) in places.items()}
    states = {rank: state for rank, (state, _) in places.items()}
    waits = {
        rank: call
        for rank in sorted(places)
        if (call := waits_in(states[rank], frames[rank]))
    }
    details = "\n".join(
        f"rank {rank}: {text.strip() or 'no answer'}"
        for rank, (_, text) in sorted(places.items())
    )
    stuck = sorted(
        places.keys() - waits,
        key=lambda rank: ({"T": 0, "R": 1}.get(states[rank], 2), rank),
    )
    if not stuck:
        calls = ", ".join(f"rank {rank} in {call}" for rank, call in waits.items())
        return RankError(
            f"time was up after {timeout:g} s and every rank that was "
            f"left was waiting: {calls}",
            min(places),
            details,
            "hung",
            waits[min(places)],
        )
    rank, *others = stuck
    nor = f"; nor had {listed(sorted(others))}" if others else ""
    state, place = _at(states[rank], frames[rank])
    return RankError(
        f"rank {rank} had not finished after {timeout:g} s: it {state}{nor}",
        rank,
        details,
        "hung",
        place,
    )


def frames_of(text):
    """Return (file, line, function) of each frame of a stack, the innermost first."""
    return re.findall(r'File "(.*)", line (\d+) in (.*)', text)


def waits_in(state, frames):
    """Return the call in which a rank waits for others, or None: see its stack."""
    names = [
        name
        for path, _, name in frames[:4]
        if re.search(r"torch.distributed", path) and name != "wrapper"
    ]
    if state in "RT" or not frames:  # running, stopped
        return None
    if names:
        return names[-1]
    path, line, name = frames[0]
    if name == "join":  # of rank.py, for ranks that have yet to come
        return "init_process_group"
    if name == "_engine_run_backward":
        return "backward"
    if ".wait()" in linecache.getline(path, int(line)):  # Work.wait has no frame
        return next(name for *_, name in frames if name[0] != "_")
    return None


def _at(state, frames):
    """Return what a rank did, in words, and the function that it was in, or None."""
    if state == "T":
        return "was stopped", None
    own = [
        frame
        for frame in frames
        if frame[2] != "__torch_function__"
        and not re.search("site-packages|lib.py", frame[0])
    ]
    for _, line, name in own or frames:  # the learner's, not a library's
        return f"was in {name}, line {line}", name
    return "did not answer", None


def echo(rank, text, stream):
    """Print a rank's text, its name before each line; of a progress bar the end."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    lines = text.removesuffix("\n").split("\n") if text else []
    if stream is sys.stderr:  # gloo's own log repeats the error
        lines = [line for line in lines if not re.match(r"\[[EWI]\d{4} ", line)]
    if lines:
        print(
            "\n".join(
                f"rank {rank}: " + line.rstrip("\r").rpartition("\r")[2]
                for line in lines
            ),
            file=stream,
        )


def printed(folder, world_size, lost):
    """Return what each rank wrote to stdout and stderr, the end of it if it is long."""
    return [
        [_end_of(folder, f"{name}-{rank}", lost) for name in ("out", "err")]
        for rank in range(world_size)
    ]


def _end_of(folder, name, lost):
    with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - PRINTED))  # a rank may go on printing
        text = file.read(PRINTED).decode(errors="replace")
        out = lost.get(name, 0) + max(0, size - PRINTED)
        return f"[{out} bytes left out]\n{text}" if out else text
    return ""


def trim(folder, ranks, lost):
    """Empty the files of output that have grown too long; count in `lost` what goes."""
    for name in [f"{name}-{rank}" for rank in ranks for name in ("out", "err")]:
        with contextlib.suppress(OSError):
            if (size := os.path.getsize(f"{folder}/{name}")) > STORED:
                os.truncate(f"{folder}/{name}", 0)
                lost[name] = lost.get(name, 0) + size


def listed(ranks):
    """Return "rank 1", or "ranks 0 and 2"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
