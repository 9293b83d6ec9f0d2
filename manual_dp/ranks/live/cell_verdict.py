"""Say what happened in a cell, and where every rank was.

outcome_of_cell   the results, or the launcher's error with a line for each rank
all_wait          whether each of these ranks waits for another
cell_line         a line of a cell, as text
"""

import linecache
import re

from manual_dp.ranks.launch import verdict
from manual_dp.ranks.launch.verdict import (
    RankError,
    frames_of,
    ranks_in_words,
    stacks_in_words,
    waits_in,
)

CELL = r"(?:cell|run) \d+"  # the name of a cell, which is its file for Python
LONGEST = 70  # characters of a line of code in a message


def outcome_of_cell(folder, job, ended, stacks):
    """Return the results by rank, pickled, or the RankError.

    job: its ranks are those that the cell was for. ended, stacks: as
    verdict.outcome_of_launch takes them.
    """
    outcome = verdict.outcome_of_launch(folder, job, ended, stacks, _error_at_deadline)
    if isinstance(outcome, RankError) and stacks:
        lines = [str(outcome)]
        lines += [_what_it_did(rank, *stacks[rank]) for rank in sorted(stacks)]
        done = [rank for rank in job["ranks"] if verdict.finished(folder, rank)]
        if done:
            lines.append(f"{ranks_in_words(done)} had finished")
        idle = [rank for rank in range(job["world_size"]) if rank not in job["ranks"]]
        if idle:
            lines.append(f"{ranks_in_words(idle)} had no cell to run")
        outcome.args = ("\n".join(lines),)
    return outcome


def _error_at_deadline(timeout, stacks):
    waiting = [rank for rank in sorted(stacks) if _waits_in(*stacks[rank])]
    stuck = sorted(stacks.keys() - waiting)
    if stuck:
        rank, how = stuck[0], f"{ranks_in_words(stuck)} had not finished"
    else:
        rank, how = waiting[0], f"{ranks_in_words(waiting)} still waited"
    return RankError(
        f"time was up after {timeout:g} s: {how}",
        rank,
        stacks_in_words(stacks),
        "hung",
        _cell_line_in(stacks[rank][1]),
    )


def all_wait(stacks):
    """Return whether each of these ranks waits for another, in a collective."""
    return all(_waits_in(state, text) for state, text in stacks.values())


def _waits_in(state, text):
    return waits_in(state, frames_of(text))


def _what_it_did(rank, state, text):
    """Return "rank 1 waited in recv (cell 3, line 2: dist.recv(x, 0))"."""
    call, where = _waits_in(state, text), _cell_line_in(text)
    if call == "<module>":  # work.wait() in the cell itself: it has no frame
        what = "waited in wait"
    elif call:
        what = f"waited in {call}"
    elif state == "T":
        what = "was stopped"
    elif state == "R":
        what = "was running"
    elif text:
        what = "had not finished"
    else:
        what = "did not answer"
    return f"rank {rank} {what}" + (f" ({where})" if where else "")


def _cell_line_in(text):
    """Return the innermost line of a cell in a stack, or None."""
    for path, line, _ in frames_of(text):
        if re.fullmatch(CELL, path):
            return cell_line(path, int(line))
    return None


def cell_line(name, line):
    """Return "cell 3, line 2: x = f()"."""
    text = linecache.getline(name, line).strip()
    if len(text) > LONGEST:
        text = text[: LONGEST - 3] + "..."
    return f"{name}, line {line}: {text}"
