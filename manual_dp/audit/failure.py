"""Where a run ended before its time: the finding, from the error and the diaries.

    Diary     where the rank is, in a file: it stays when the rank hangs; read_diaries
    failure   the `Finding` of a `RankError`
"""

import json
import re
from pathlib import Path

from manual_dp.audit.catalogue import few, finding, ranks
from manual_dp.files import write_json
from manual_dp.ranks.launch.verdict import frames_of


class Diary:
    """Say in a file of `folder` where the rank is."""

    def __init__(self, folder, rank):
        self.path = Path(folder) / f"rank-{rank}"
        self.path.parent.mkdir(exist_ok=True)
        self.now = {"step": None, "forwards": 0, "in": "make_model"}
        self.note()

    def note(self, **now):
        """Write down what is new."""
        self.now.update(now)
        write_json(self.path, self.now)


def read_diaries(folder):
    """Return {rank: what its diary says}."""
    return {int(path.name.removeprefix("rank-")): json.loads(path.read_text())
            for path in sorted(Path(folder).glob("rank-*"))}


def failure(error, folder):
    """Return the finding that a launch ended in.

    error: the `RankError`, or what has its fields.
    folder: of the ranks' diaries, which say where they were.
    """
    text, rank = str(error), error.rank
    diaries = read_diaries(folder)
    step = diaries[rank]["step"] if rank in diaries else None
    if "DDP expects same model" in text:
        return finding("start-differs", 1, text.split("\n")[0], rank)
    if parted := _parted(diaries):
        return parted
    if "not used in producing loss" in text or "backward did not reach" in text:
        return finding("unused-parameter", 1, text.split(". ")[0], rank)
    if "Received data size doesn't match expected size" in text + error.details:
        return finding("mismatch", 1, f"on rank {rank} a tensor came that has another "
                       "size than the one expected", rank)
    if error.kind in ("hung", "left"):
        at = stands(error.details)
        waiting = finding("hang", 1, text)
        return _waiting(text, step, diaries, at) if diaries else waiting
    place = "" if step is None else f"step {step}: "
    return finding("exception", 1, place + text.split("\n")[0], rank, step)


def _parted(diaries):
    """Return the finding if ranks train, or reached, other parameters; else None."""
    for key, code, says in (
            ("frozen", "frozen", "{names} want no gradient on {who}, unlike others"),
            ("silent", "unused-parameter", "the loss of {who} does not depend on "
             "{names}; the others wait for that gradient")):
        lists = {rank: here.get(key) for rank, here in diaries.items()}
        who = [rank for rank, names in lists.items() if names]
        if who and any(names != lists[who[0]] for names in lists.values()):
            names = lists[who[0]]
            return finding(code, len(names), says.format(
                names=few(names), who=ranks(who)), who[0],
                diaries[who[0]]["step"], names[0])
    return None


def stands(details):
    """Return {rank: file, line and function of its own code} from the ranks' stacks."""
    parts = re.split(r"^rank (\d+): ?", details, flags=re.M)[1:]
    return {int(rank): place(stack) for rank, stack in zip(parts[::2], parts[1::2])}


def place(stack):
    """Return where a stack, its innermost frame first, stands in the user's code."""
    for path, line, name in frames_of(stack):
        if not re.search(r"site-packages|/lib/python|<|audit/\w+\.py", path):
            return f"{Path(path).name}, line {line}, in {name}"
    return ""


def _waiting(text, step, diaries, at):
    """Return the finding for ranks that wait: who is behind, and by how much."""
    behind = sorted((-1 if here["step"] is None else here["step"], here["in"] != "step",
                     here["forwards"], rank) for rank, here in diaries.items())
    steps, _, forwards, ranks = zip(*behind)
    code = "unequal-batches" if len(set(steps)) == 1 < len(set(forwards)) else "hang"
    told = "; ".join(f"rank {rank} in {_moment(here)}" + f" ({at.get(rank)})" * bool(
        at.get(rank)) for rank, here in sorted(diaries.items()))
    return finding(code, max(forwards) - min(forwards), f"{told}: {text}", ranks[0],
                   step)


def _moment(here):
    if here["step"] is None:
        return here["in"]
    return f"{here['in']} {here['step']}, after {here['forwards']} forwards"
