"""Say what happened in a cell, and where every rank was.

judge   the results, or the error: the launcher's verdict, with a line for each rank
place   a line of a cell, as text
"""

import linecache
import re

from manual_dp.ranks.launch import verdict
from manual_dp.ranks.launch.verdict import RankError, frames_of, listed, waits_in

CELL = r"(?:cell|run) \d+"  # the name of a cell, which is its file for Python
LONGEST = 70  # characters of a line of code in a message


def judge(folder, job, ended, places):
    """Return the results by rank, pickled, or the RankError.

    job: its ranks are those that the cell was for. ended, places: as verdict.judge
    takes them.
    """
    outcome = verdict.judge(folder, job, ended, places, _late)
    if isinstance(outcome, RankError) and places:
        done = [rank for rank in job["ranks"] if verdict.finished(folder, rank)]
        idle = [rank for rank in range(job["world_size"]) if rank not in job["ranks"]]
        lines = [_doing(rank, *places[rank]) for rank in sorted(places)]
        lines += [
            f"{listed(some)} {how}"
            for some, how in ((done, "had finished"), (idle, "had no cell to run"))
            if some
        ]
        outcome.args = ("\n".join([str(outcome), *lines]),)
    return outcome


def _late(timeout, places):
    waiting = [rank for rank in sorted(places) if _call(*places[rank])]
    stuck = sorted(places.keys() - waiting)
    how = (
        f"{listed(stuck)} had not finished"
        if stuck
        else (f"{listed(waiting)} still waited")
    )
    rank = (stuck or waiting)[0]
    details = "\n".join(
        f"rank {rank}: {text.strip() or 'no answer'}"
        for rank, (_, text) in sorted(places.items())
    )
    return RankError(
        f"time was up after {timeout:g} s: {how}",
        rank,
        details,
        "hung",
        _cell_of(places[rank][1]),
    )


def waiting(places):
    """Return whether each of these ranks waits for another, in a collective."""
    return all(_call(*where) for where in places.values())


def _call(state, text):
    return waits_in(state, frames_of(text))


def _doing(rank, state, text):
    call, where = _call(state, text), _cell_of(text)
    what = (
        f"waited in {'wait' if call == '<module>' else call}"
        if call
        else "was stopped"
        if state == "T"
        else "was running"
        if state == "R"
        else "had not finished"
        if text
        else "did not answer"
    )
    return f"rank {rank} {what}" + (f" ({where})" if where else "")


def _cell_of(text):
    """Return the innermost line of a cell in a stack, or None."""
    return next(
        (
            place(path, int(line))
            for path, line, _ in frames_of(text)
            if re.fullmatch(CELL, path)
        ),
        None,
    )


def place(name, line):
    """Return "cell 3, line 2: x = f()"."""
    text = linecache.getline(name, line).strip()
    return f"{name}, line {line}: " + (
        text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    )
