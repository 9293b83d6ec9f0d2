"""How the answers of problem set 9 are run.

    halving_doubling, two_level   one program for each rank, step by step
    the others                    in this process, one call after another
"""

import copy
import math
from types import SimpleNamespace
from unittest.mock import patch

import torch

from manual_dp.school.ps2.run import on_every_rank
from manual_dp.school.tools.afresh import Afresh
from manual_dp.school.tools.plain import plainly
from manual_dp.school.tools.rounds import run_rounds

# what the notebook's first cell defines
START = dict(math=math, torch=torch, SimpleNamespace=SimpleNamespace,
             run_rounds=run_rounds)
# and what else it imports, for trying things out
TRIED = ("check", "LINKS")
# graded, every rank of these has a process of its own: grader/apart.py
APART = ("halving_doubling", "two_level")


def fit(case, fit):
    """Hand over what was measured; return the pair, and the lists afterwards."""
    sizes, seconds = list(case["sizes"]), list(case["seconds"])
    return {"pair": plainly(fit(sizes, seconds)), "sizes": plainly(sizes),
            "seconds": plainly(seconds)}


def allreduce_seconds(case, allreduce_seconds):
    """Ask for the seconds of some ways, world sizes and tensors."""
    return [plainly(allreduce_seconds(way, world_size, size, case["alpha"],
                                      case["beta"]))
            for way, world_size, size in case["asked"]]


halving_doubling = on_every_rank


def two_level(case, two_level):
    """Run a program on every rank that is told how many ranks a node has."""
    def program(rank, world_size, own):
        return two_level(rank, world_size, own, case["per_node"])
    return on_every_rank(case, program)


def finish(case, finish, best_cap):
    """Ask when the last of some buckets has come, then for the best cap, if any."""
    return [_ends(one, finish, best_cap) for one in case["several"]]


def _ends(one, finish, best_cap):
    link = SimpleNamespace(**one["link"])
    ready, sizes, caps = (list(one[name]) for name in ("ready", "sizes", "caps"))
    end, cap = plainly(finish(ready, sizes, link)), None
    if ready and end is not None:
        cap = plainly(best_cap(ready, sizes, link, caps))
    return {"finish": end, "cap": cap, "ready": plainly(ready), "sizes": plainly(sizes),
            "caps": plainly(caps), "link": plainly(vars(link))}


def best_world_size(case, step_seconds, best_world_size, first_slower):
    """Ask for the seconds of some steps, then which number of ranks is best."""
    def job():
        return SimpleNamespace(**case["job"])
    steps = [plainly(step_seconds(job(), world_size, weak))
             for world_size, weak in case["asked"]]
    if None in steps:  # the others count on them
        return {"steps": steps}
    return {"steps": steps,
            "best": [plainly(best_world_size(job(), case["most"], weak))
                     for weak in (False, True)],
            "slower": [plainly(first_slower(job(), most))
                       for most in case["searched"]]}


def zero_bytes(case, zero_bytes, fewest_ranks):
    """Ask for the bytes of some stages, then for the ranks that are enough."""
    layers = list(case["layers"])
    kept = [plainly(zero_bytes(layers, world_size, stage))
            for world_size, stage in case["asked"]]
    ranks = [] if None in kept else [
        plainly(fewest_ranks(layers, stage, memory, case["most"]))
        for stage, memory in case["memories"]]
    return {"bytes": kept, "ranks": ranks, "layers": plainly(layers)}


def place(case, place):
    """Ask each rank for its place; see whether an environment is changed."""
    found = []
    with patch.dict("os.environ"):
        for env, gpus in case["ranks"]:
            own = copy.copy(env)
            found.append(_as_lists(place(own, gpus, case["rows"])))
            if own != env:
                found[-1] = CHANGED
    return found


CHANGED = "an environment that was changed"


def _as_lists(value):
    """Return the four parts of a place as lists, numbers and texts."""
    if not isinstance(value, (list, tuple)):
        return plainly(value)
    return [str(part) if isinstance(part, torch.device) else _listed(part)
            for part in value]


def _listed(value):
    """Return a range, or whatever else it is, as JSON takes it."""
    return plainly(list(value) if isinstance(value, range) else value)


def rows_left(case, rows_left):
    """Ask as if by processes of their own, in which nothing is remembered."""
    ask = Afresh(rows_left)

    def rows(*args):
        before = torch.random.get_rng_state()
        found = ask(*args)
        moved = not torch.equal(before, torch.random.get_rng_state())
        if isinstance(found, (list, tuple)):
            found = [_listed(part) for part in found]
        return plainly(found), moved
    orders, moved = zip(*(rows(case["n"], 0, 1, 1, seed, epoch)
                          for seed, epoch in case["epochs"]))
    asked = [rows(*args) for args in case["asked"]]
    return {"orders": list(orders), "shares": [found for found, _ in asked],
            "drawn": any(moved) or any(more for _, more in asked),
            "hashed": ask.hashed}
