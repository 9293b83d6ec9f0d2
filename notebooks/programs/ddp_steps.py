"""Let a program grow in steps: read it, read what changed, run it on some ranks.

ddp_first_try.py    a loop for one process, with four lines of torch.distributed
ddp_rows.py         the first step: each rank has rows of its own
ddp_log.py          the second: the ranks test and print together
train_ddp.py        the third: they stop and go on; what a learner takes home

read       a program, as a cell shows it
changes    what a program has that the one before it has not, and the other way
start      run a program as torchrun does, in ranks that have torch loaded already
"""

import difflib
import io
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist

from course.lab.notebook import Source
from manual_dp.ranks import run_ranks

PROGRAMS = Path(__file__).parent


class Changes(Source):
    """Be lines with + and -: a notebook colours them, a terminal prints them."""

    def _repr_markdown_(self):
        return f"```diff\n{self}\n```"


def read(name):
    """Return the program, to be displayed: without docstring, and words for ruff."""
    text = (PROGRAMS / f"{name}.py").read_text().rstrip()
    return Source(re.sub("  # noqa.*", "", text.partition("\n\n")[2]))


def changes(before, after):
    """Return the lines that went (-) and came (+), each change below a line kept."""
    old, new = (str(read(name)).splitlines() for name in (before, after))
    lines = [*difflib.unified_diff(old, new, n=1, lineterm="")][2:]
    return Changes(
        "\n".join("..." if x.startswith("@@") else x for x in lines)
    )


def start(name, ranks, *options, evaluate=None):
    """Run the program on so many ranks, on CPUs; return their lines, rank by rank.

    options: what stands behind the program's name in a terminal.
    evaluate: takes the place of the function that it imports from train_ddp.
    """
    printed = run_ranks(_run, ranks, name, options, evaluate, timeout=200)
    return [line for lines in printed for line in lines]


def _run(name, options, evaluate):
    sys.path.insert(0, str(PROGRAMS))  # as Python does for a program
    sys.argv = [f"{name}.py", *map(str, options)]
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    if evaluate:
        sys.modules["train_ddp"] = SimpleNamespace(evaluate=evaluate)
    with (
        # these ranks have met, over gloo, and run_ranks parts them
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
        patch.object(torch.cuda, "device_count", return_value=0),
        redirect_stdout(io.StringIO()) as out,
    ):
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    return out.getvalue().splitlines()
