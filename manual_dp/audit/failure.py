"""Where a run ended before its time: the finding, from the error and the diaries.

    Diary     where the rank is, in a file: it stays when the rank hangs; read_diaries
    failure   the `Finding` of a `RankError`
    explained the finding in what diaries say, or None: also of ranks that only wait
    uneven    the finding for optimizers that took more steps on some ranks
    served    the ranks that another one steps for
"""

import json
import re
from pathlib import Path

from manual_dp.audit.catalogue import few, finding, ranks, so_many
from manual_dp.audit.meeting import BEGIN
from manual_dp.files import write_json
from manual_dp.ranks.launch.verdict import frames_of


class Diary:
    """Say in a file of `folder` where the rank is."""

    def __init__(self, folder, rank):
        self.path = Path(folder) / f"rank-{rank}"
        self.path.parent.mkdir(exist_ok=True)
        self.now = dict(BEGIN)
        self.note()

    def note(self, **now):
        """Write down what is new."""
        self.now.update(now)
        write_json(self.path, self.now)


def read_diaries(folder, name="rank"):
    """Return {rank: what its diary says}, or its other JSON file called `name`-RANK."""
    return {int(path.name.removeprefix(f"{name}-")): json.loads(path.read_text())
            for path in sorted(Path(folder).glob(f"{name}-*"))}


def failure(error, folder):
    """Return the finding that a launch ended in.

    error: the `RankError`, or what has its fields.
    folder: of the ranks' diaries, which say where they were.
    """
    text, rank = str(error), error.rank
    diaries, waits = read_diaries(folder), error.kind in ("hung", "left")
    step = diaries[rank]["step"] if rank in diaries else None
    if "DDP expects same model" in text:
        return finding("start-differs", 1, text.split("\n")[0], rank)
    if found := explained(diaries) if waits else _parted(diaries):
        return found
    if "not used in producing loss" in text or "backward did not reach" in text:
        names = diaries.get(rank, {}).get("silent")
        says = f"the loss does not depend on {few(names)}; " if names else ""
        return finding("unused-parameter", 1, says + text.split(". ")[0], rank)
    if "Received data size doesn't match expected size" in text + error.details:
        return finding("mismatch", 1, f"on rank {rank} a tensor came that has another "
                       "size than the one expected", rank)
    if error.kind == "gone":
        return _gone(text, rank, diaries)
    if waits:
        at = stands(error.details)
        waiting = finding("hang", 1, text)
        return _waiting(text, step, diaries, at) if diaries else waiting
    place = "" if step is None else f"step {step}: "
    code = "killed" if error.kind == "killed" else "exception"
    return finding(code, 1, place + text.split("\n")[0], rank, step)


def explained(diaries):
    """Return the finding that the diaries show, why ever their ranks wait; or None."""
    return uneven(diaries) or _parted(diaries)


def uneven(diaries):
    """Return the finding if an optimizer did not take its steps on some rank, or None.

    A rank that is only late has begun fewer forwards: of it nothing is said here. Ranks
    that are done have taken as many steps of all optimizers, and should of each.
    """
    told = {rank: here for rank, here in diaries.items() if "taken" in here}
    most = max((len(here["taken"]) for here in told.values()), default=0)
    done = len({here["step"] for here in told.values()}) == 1 and all(
        here["in"].startswith("the rest") for here in told.values())
    for i in range(most):
        took = {rank: (here["taken"] + [0] * most)[i] for rank, here in told.items()}
        first = max(took, key=took.get)
        behind = [rank for rank, count in took.items() if count < took[first]
                  and rank not in served(told) and (
            done or _passed(told[rank], told[first], took[first] - count))]
        if behind:
            of = f" of optimizer {i}" if most > 1 else ""
            count = took[behind[0]]
            alike = ranks([rank for rank in behind if took[rank] == count])
            return finding(
                "replicas-differ" if count else "nothing-moved", took[first] - count,
                f"{alike} took {so_many(count, 'step') if count else 'no step'}{of}, "
                f"{ranks([first])} {took[first]}", behind[0])
    return None


def served(diaries):
    """Return the ranks that take no step, and get other weights all the same."""
    return [rank for rank, here in diaries.items() if here.get("wanders")
            and not steps_of(here) and any(map(steps_of, diaries.values()))]


def _passed(here, other, fewer):
    """Return whether this rank went on without the steps that the other one took."""
    return here["total"] - other["total"] >= (fewer < 2)


def steps_of(here):
    """Return how many steps a rank has taken, by its diary."""
    return max(here.get("taken", ()), default=0)


def _gone(text, rank, diaries):
    """Return the finding for a rank that ended, and others wait for it."""
    counts = {other: steps_of(here) for other, here in diaries.items()}
    begun = {other: here.get("total", 0) for other, here in diaries.items()}
    fewer = "end of the script" in text and begun.get(rank, 0) < max(begun.values())
    waits = [other for other in diaries if other != rank]
    took = so_many(counts.get(rank, 0), "step")
    return finding("unequal-batches" if fewer else "hang", 1, f"{text} after {took}, "
                   f"and {ranks(waits)} went on", rank,
                   diaries.get(rank, {}).get("step"))


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
