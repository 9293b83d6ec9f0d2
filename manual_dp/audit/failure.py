"""Where a run ended before its time: the finding, from the error and the diaries.

    failure   the `Finding` of a `RankError`
"""

from manual_dp.audit.catalogue import finding
from manual_dp.audit.watch import read_diaries


def failure(error, folder):
    """Return the finding that a launch ended in.

    error: the `RankError`. folder: of the ranks' diaries, which say where they were.
    """
    text, rank = str(error), error.rank
    diaries = read_diaries(folder)
    step = diaries[rank]["step"] if rank in diaries else None
    if "not used in producing loss" in text or "backward did not reach" in text:
        return finding("unused-parameter", 1, text.split(". ")[0], rank)
    if "Received data size doesn't match expected size" in text + error.details:
        return finding("mismatch", 1, f"on rank {rank} a tensor came that has another "
                       "size than the one expected", rank)
    if error.kind in ("hung", "left") and diaries:
        return _waiting(text, step, diaries)
    place = "" if step is None else f"step {step}: "
    return finding("exception", 1, place + text.split("\n")[0], rank, step)


def _waiting(text, step, diaries):
    """Return the finding for ranks that wait: who is behind, and by how much."""
    behind = sorted((-1 if here["step"] is None else here["step"], here["in"] != "step",
                     here["forwards"], rank) for rank, here in diaries.items())
    steps, _, forwards, ranks = zip(*behind)
    code = "unequal-batches" if len(set(steps)) == 1 < len(set(forwards)) else "hang"
    told = "; ".join(f"rank {rank} in {_place(here)}"
                     for rank, here in sorted(diaries.items()))
    return finding(code, max(forwards) - min(forwards), f"{told}: {text}", ranks[0],
                   step)


def _place(here):
    if here["step"] is None:
        return here["in"]
    return f"{here['in']} {here['step']}, after {here['forwards']} forwards"
