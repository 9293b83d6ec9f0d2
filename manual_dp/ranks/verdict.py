"""Say what happened in a launch: the cause first, not what followed from it.

    judge      the results, or the error: message, rank and details
    finished   whether a rank has left a result

Causes in this order: an exception of a rank's own, a signal, an exit code, an exit
without a result, a rank that is still running at the deadline, and only then an
exception that says that some other rank is gone.
"""

import os
import pickle
import re
import signal


def judge(folder, job, status, places):
    """Return {"results": ...} or {"error": (message, rank, details)}.

    status: exit status by rank, minus the number for a signal; a rank that had to be
    killed is missing. places: for these, after the deadline, where they were.
    """
    ranks = range(job["world_size"])
    done = [rank for rank in ranks if finished(folder, rank)]
    if len(done) == len(ranks):
        return {"results": [read(folder, f"result-{rank}") for rank in ranks]}
    errors = {rank: pickle.loads(text) for rank in ranks
              if (text := read(folder, f"error-{rank}"))}
    own = [rank for rank in errors if not errors[rank]["peer"]]
    if own:  # the first; of several that met with the same, the lowest rank
        kind = errors[min(own, key=lambda rank: errors[rank]["time"])]["kind"]
        rank = next(rank for rank in own if errors[rank]["kind"] == kind)
        return _error(f"rank {rank} raised {errors[rank]['text']}", rank,
                      errors[rank]["traceback"])
    ended = [rank for rank in sorted(status) if rank not in errors and rank not in done]
    for rank in sorted(ended, key=lambda rank: (status[rank] >= 0, -status[rank])):
        return _error(_ending(rank, status[rank]), rank,
                      read(folder, f"err-{rank}").decode(errors="replace")[-4000:])
    if places:
        return _late(job["timeout"], places)
    rank = min(errors)
    others = f"{_names(done)} had finished" if done else "another rank was gone"
    return _error(f"rank {rank} was still waiting in {errors[rank]['where']} when "
                  f"{others}", rank, errors[rank]["traceback"])


def finished(folder, rank):
    """Return whether the rank has left a result."""
    return os.path.exists(f"{folder}/result-{rank}")


def read(folder, name):
    """Return a file's bytes, none if there is no such file."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _error(message, rank, details=""):
    return {"error": (message, rank, details)}


def _ending(rank, code):
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    if code == 0:
        return f"rank {rank} exited without returning a result (exit code 0)"
    return f"rank {rank} exited with code {code}"


def _late(timeout, places):
    """Name the rank that holds up the others, and say where each was."""
    waits = {rank: _waits_in(text) for rank, text in places.items()}
    stuck = [rank for rank in sorted(places) if not waits[rank]]
    details = "\n".join(f"rank {rank}: {text.strip() or 'no answer'}"
                        for rank, text in sorted(places.items()))
    if not stuck:
        calls = ", ".join(f"rank {rank} in {call}"
                          for rank, call in sorted(waits.items()))
        return _error(f"time was up after {timeout:g} s and every rank that was left "
                      f"was waiting: {calls}", min(places), details)
    rank = stuck[0]
    state = "was stopped" if places[rank] == "stopped" else _at(places[rank])
    return _error(f"rank {rank} had not finished after {timeout:g} s: it {state}",
                  rank, details)


def _waits_in(text):
    """Return the torch.distributed call in a stack dump's innermost frames, or None."""
    frames = re.findall(r'File "(.*)", line \d+ in (.*)', text)
    names = [name for path, name in frames[:4]
             if re.search(r"torch.distributed", path) and name != "wrapper"]
    return names[-1] if names else None


def _at(text):
    frame = re.search(r'line (\d+) in (.*)', text)
    return f"was in {frame[2]}, line {frame[1]}" if frame else "did not answer"


def _names(ranks):
    words = [str(rank) for rank in ranks]
    return (f"rank {words[0]}" if len(words) == 1
            else f"ranks {', '.join(words[:-1])} and {words[-1]}")
