"""Say what happened in a launch: the cause, not what followed from it.

    RankError           what went wrong first, and in which rank
    outcome_of_launch   the results, or the error
    finished            whether a rank has written a result
    frames_of           the frames of a rank's stack
    waits_in            the call in which a rank waits for others
    ranks_in_words      "rank 1", or "ranks 0 and 2"
    read_bytes, read_stack, read_prints    what a rank has written
    trim_prints, echo   empty files that grow too long; print a rank's text here

The cause is the first of these that there is: an exception of a rank's own or an end
without a result (signal, exit code), whichever came earlier; a rank that still runs at
the deadline; an exception that says that some other rank is gone.
"""

import contextlib
import json
import linecache
import os
import re
import signal
import sys

from manual_dp.ranks.launch.processes import signal_name

PRINTED = 10**6  # bytes of a rank's output, the last ones, that are sent to the caller
STORED = 2**26  # bytes of its output that may stand on the disk


class RankError(RuntimeError):
    """Say what went wrong first, and in which rank; as text, and as data.

    kind: "raised", "killed" (by a signal), "exited" (without a result), "hung" (time
    was up), "left" (it waited for ranks that were gone), "unreadable" (its result), or
    "lost" (the launch itself). rank: its number, None if no rank is at fault. where:
    the function in which it waited or hung; of ranks that stay, the line of the cell.
    cause: the name of the exception's class, if it raised. details: a traceback, what
    a rank that died wrote to stderr, or where each rank was. states: of each rank that
    was left when time was up, "waits" (for others), "runs", "stopped" or "sleeps".
    """

    def __init__(
        self, message, rank=None, details="", kind="lost", where=None, cause=None
    ):
        super().__init__(message)
        self.rank, self.details = rank, details
        self.kind, self.where, self.cause = kind, where, cause
        self.states = {}
        if details and hasattr(self, "add_note"):  # Python 3.11
            self.add_note(details)


def outcome_of_launch(folder, job, ended, stacks, error_at_deadline=None):
    """Return the results by rank, pickled, or the RankError.

    ended: (time, exit code) of each rank that has ended by itself, code -n for signal
    n. stacks: (state, stack as text) of each rank that still ran at the deadline.
    error_at_deadline(timeout, stacks) returns the error for these.
    """
    ranks = job.get("ranks", range(job["world_size"]))
    done = [rank for rank in ranks if finished(folder, rank)]
    if len(done) == len(ranks):
        return [read_bytes(folder, f"result-{rank}") for rank in ranks]
    errors = {
        rank: json.loads(text)
        for rank in ranks
        if (text := read_bytes(folder, f"error-{rank}"))
    }
    own = {rank: error for rank, error in errors.items() if not error["peer"]}
    dead = [rank for rank in ended if rank not in errors and rank not in done]

    def order_of_death(rank):
        time, code = ended[rank]
        # Aborts come last. When a rank dies, its connections close a little before its
        # end can be seen, and gloo may abort another rank in between.
        return code == -signal.SIGABRT, time, code >= 0, rank

    first_dead = min(dead, key=order_of_death, default=None)
    first_raised = min(own, key=lambda rank: own[rank]["time"], default=None)
    if own and (not dead or own[first_raised]["time"] <= ended[first_dead][0]):
        # if several raised the same, name the lowest rank, in every run
        cause = own[first_raised]["cause"]
        rank = min(rank for rank in own if own[rank]["cause"] == cause)
        text, cell_line = own[rank]["text"], own[rank].get("cell_line")
        return RankError(
            f"rank {rank} raised {text}" + (f" ({cell_line})" if cell_line else ""),
            rank,
            own[rank]["traceback"],
            "raised",
            cell_line,
            cause,
        )
    if dead:
        kind, how = _kind_of_end(ended[first_dead][1])
        return RankError(
            f"rank {first_dead} {how}{_read_note(job, first_dead)}",
            first_dead,
            _last_output(folder, first_dead),
            kind,
        )
    if stacks:
        error = (error_at_deadline or _error_at_deadline)(job["timeout"], stacks)
        error.states = {rank: _state_in_words(*at) for rank, at in stacks.items()}
        return error
    rank = min(errors)
    others = f"{ranks_in_words(done)} had finished" if done else "another rank was gone"
    where = errors[rank]["where"]
    return RankError(
        f"rank {rank} was still waiting in {where} when {others}",
        rank,
        errors[rank]["traceback"],
        "left",
        where,
    )


def finished(folder, rank):
    """Return whether the rank has written a result."""
    return os.path.exists(f"{folder}/result-{rank}")


def read_bytes(folder, name):
    """Return a file's bytes; none if there is no such file, or no folder any more."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_stack(folder, rank):
    """Return the stack that faulthandler wrote for a rank, with its escapes undone."""
    text = read_bytes(folder, f"stack-{rank}").decode(errors="replace")
    return re.sub(  # faulthandler writes a letter that is not ASCII as \xNN or \uNNNN
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda found: chr(int(found[found.lastindex], 16)),
        text,
    )


def _kind_of_end(code):
    """Return RankError's kind for an exit code, and how the rank ended, in words."""
    if code < 0:
        return "killed", f"was killed by {signal_name(-code)}"
    if code == 0:
        return "exited", "exited without returning a result (exit code 0)"
    return "exited", f"exited with code {code}"


def _read_note(job, rank):
    """Return the error that a rank wrote to memory because no file took it, or ""."""
    return job["notes"][rank][:].rstrip(b"\0").decode(errors="ignore")


def _last_output(folder, rank):
    """Return the end of what a dead rank wrote to stderr, and where it crashed."""
    text = read_bytes(folder, f"err-{rank}")[-4000:].decode(errors="replace")
    return (text + read_stack(folder, rank)).partition("\nExtension modules")[0]


def _error_at_deadline(timeout, stacks):
    """Return the error that names the rank that holds up the others."""
    frames = {rank: frames_of(text) for rank, (_, text) in stacks.items()}
    states = {rank: state for rank, (state, _) in stacks.items()}
    waits = {
        rank: call
        for rank in sorted(stacks)
        if (call := waits_in(states[rank], frames[rank]))
    }
    details = stacks_in_words(stacks)
    # name a rank that was stopped before one that runs, and that before any other
    order = {"T": 0, "R": 1}
    stuck = sorted(
        stacks.keys() - waits, key=lambda rank: (order.get(states[rank], 2), rank)
    )
    if not stuck:
        calls = ", ".join(f"rank {rank} in {call}" for rank, call in waits.items())
        return RankError(
            f"time was up after {timeout:g} s and every rank that was "
            f"left was waiting: {calls}",
            min(stacks),
            details,
            "hung",
            waits[min(stacks)],
        )
    rank, *others = stuck
    nor = f"; nor had {ranks_in_words(sorted(others))}" if others else ""
    what, function = _what_it_did(states[rank], frames[rank])
    return RankError(
        f"rank {rank} had not finished after {timeout:g} s: it {what}{nor}",
        rank,
        details,
        "hung",
        function,
    )


def stacks_in_words(stacks):
    """Return the stack of each rank, or that it did not answer."""
    return "\n".join(
        f"rank {rank}: {text.strip() or 'no answer'}"
        for rank, (_, text) in sorted(stacks.items())
    )


def frames_of(text):
    """Return (file, line, function) of each frame of a stack, the innermost first."""
    return re.findall(r'File "(.*)", line (\d+) in (.*)', text)


def waits_in(state, frames):
    """Return the call in which a rank waits for others, or None if it does not wait."""
    names = [
        name
        for path, _, name in frames[:4]
        if re.search(r"torch.distributed", path) and name != "wrapper"
    ]
    if state in "RT" or not frames:  # it runs, is stopped, or wrote no stack
        return None
    if names:
        return names[-1]
    path, line, name = frames[0]
    if name == "join_group":  # rank.py: it waits for ranks that have not joined yet
        return "init_process_group"
    if name == "_engine_run_backward":
        return "backward"
    # work.wait() is in C and has no frame: name the function that calls it
    if ".wait()" in linecache.getline(path, int(line)):
        return next(name for *_, name in frames if name[0] != "_")
    return None


def _state_in_words(state, stack):
    """Return what a rank was doing, of the four words of RankError.states."""
    if waits_in(state, frames_of(stack)):
        return "waits"
    return {"R": "runs", "T": "stopped"}.get(state, "sleeps")


def _what_it_did(state, frames):
    """Return what a rank did, in words, and the function that it was in, or None."""
    if state == "T":
        return "was stopped", None
    own = [
        frame
        for frame in frames
        if frame[2] != "__torch_function__"
        and not re.search("site-packages|lib.py", frame[0])
    ]
    if not frames:
        return "did not answer", None
    _, line, name = (own or frames)[0]  # the learner's function, not a library's
    return f"was in {name}, line {line}", name


def echo(rank, text, stream):
    """Print a rank's text, "rank R: " before each line.

    A line that a progress bar has written over is shown as it was in the end. What the
    stream cannot encode is escaped.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    lines = text.removesuffix("\n").split("\n") if text else []
    if stream is sys.stderr:  # leave out gloo's log, which repeats the error
        lines = [line for line in lines if not re.match(r"\[[EWI]\d{4} ", line)]
    if lines:
        print(
            "\n".join(
                f"rank {rank}: " + line.rstrip("\r").rpartition("\r")[2]
                for line in lines
            ),
            file=stream,
        )


def read_prints(folder, world_size, lost):
    """Return [stdout, stderr] of each rank, the end of it if it is long.

    lost: the bytes of each file that trim_prints has dropped.
    """
    return [
        [_end_of(folder, f"{name}-{rank}", lost) for name in ("out", "err")]
        for rank in range(world_size)
    ]


def _end_of(folder, name, lost):
    with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - PRINTED))
        # not all that is there: a rank may go on printing
        text = file.read(PRINTED).decode(errors="replace")
        out = lost.get(name, 0) + max(0, size - PRINTED)
        return f"[{out} bytes left out]\n{text}" if out else text
    return ""


def trim_prints(folder, ranks, lost):
    """Empty each file of output that is too long; add the bytes dropped to `lost`."""
    for name in [f"{name}-{rank}" for rank in ranks for name in ("out", "err")]:
        with contextlib.suppress(OSError):
            if (size := os.path.getsize(f"{folder}/{name}")) > STORED:
                os.truncate(f"{folder}/{name}", 0)
                lost[name] = lost.get(name, 0) + size


def ranks_in_words(ranks):
    """Return "rank 1", or "ranks 0 and 2"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
