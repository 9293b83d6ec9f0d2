"""Run answers on ranks, and see what they hand to torch.distributed.

    on_ranks   what a function returns on every rank
    attempt    the same in a dict, or there what kept the ranks from an end
    watched    a list that grows by every call of a collective

Watched is a collective that is called by its name in torch.distributed: what torch
calls inside itself is not.
"""

import re
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist

from manual_dp.ranks import RankError, run_ranks
from manual_dp.school.tools.plain import numbers
from manual_dp.school.tools.settings import put, settings

# all ranks have to come to these ...
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather",
               "scatter", "all_gather_into_tensor", "reduce_scatter",
               "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
               "all_gather_object", "gather_object", "broadcast_object_list",
               "scatter_object_list")
# ... and two of them, or more, to these
PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
BLANK = "not written"


def on_ranks(work, world_size, seconds):
    """Return what `work()` returns on each rank, as lists; a blank answer raises here.

    NotImplementedError is an answer's own if it says nothing: torch's has a text.
    """
    def written():
        try:
            return numbers(work()), settings()
        except NotImplementedError as error:
            if str(error):
                raise
            return BLANK
    results = run_ranks(written, world_size, timeout=seconds)
    if BLANK in results:
        raise NotImplementedError
    for _, now in results:  # what a rank leaves changed shows here, too
        put(now)
    return [result for result, _ in results]


def attempt(work, world_size, seconds):
    """Return every rank's result as "ranks", or "error", its "kind" and its "place"."""
    try:
        return {"ranks": on_ranks(work, world_size, seconds)}
    except RankError as error:
        return {"error": str(error), "kind": error.kind,
                "place": _place(getattr(error, "details", ""))}


def _place(traceback):
    """Return the line of the learner's code at which a rank's traceback ends."""
    frames = [(line, name) for path, line, name in
              re.findall(r'File "(.*)", line (\d+), in (\w+)', str(traceback))
              if not re.search("manual_dp|site-packages|torch", path)]
    return f" (in {frames[-1][1]}, line {frames[-1][0]} of its cell)" if frames else ""


@contextmanager
def watched(before=lambda name: None, names=(*COLLECTIVES, *PAIRS)):
    """Yield a list; while the block runs, each call of a collective adds to it.

    An all-reduce adds how many numbers it is handed, any other its name.
    before: called with the name of a collective before it starts. names: of those that
    are watched.
    """
    calls, real = [], {name: getattr(dist, name) for name in names}

    def call(name, *args, **kwargs):
        before(name)
        tensor = args[0] if args else kwargs.get("tensor")
        counted = name == "all_reduce" and isinstance(tensor, torch.Tensor)
        calls.append(tensor.numel() if counted else name)
        return real[name](*args, **kwargs)
    with patch.multiple(dist, **{name: partial(call, name) for name in real}):
        yield calls
