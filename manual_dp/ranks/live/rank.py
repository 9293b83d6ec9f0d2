"""What a rank that stays does: one cell after another, with the names of those before.

    run    move in, join the group, then answer each byte with a cell's result

Files in the launch's folder, beside those of launch/rank.py:

    cell       what to run, or values to keep: written by the warden
    meeting    where a group that is opened by hand meets
"""

import ast
import functools
import json
import linecache
import os
import pickle
import re
import sys
import traceback
import types

import torch
import torch.distributed as dist

from manual_dp.ranks.launch import rank as launched
from manual_dp.ranks.launch.verdict import read
from manual_dp.ranks.live.fault import CELL, place

FILES = __file__, launched.__file__


def run(rank, job, line):
    """Answer cells until `line` closes or a cell ends the process; never return."""
    folder, code = job["folder"], 1
    try:
        try:
            launched.move_in(rank, job, folder)
            names = _answer(rank, folder, line, _settle, rank, job)
            while line.recv(1):
                cell = pickle.loads(read(folder, "cell"))
                _answer(rank, folder, line, _run_cell, cell, names)
        except SystemExit as error:
            code = launched.exit_code(error)
        launched.leave(job["world_size"], folder, wait=False)
    finally:
        os._exit(code & 0xFF)


def _answer(rank, folder, line, function, *args):
    """Call the function; leave its result or its error, and say so with a byte."""
    names = None
    try:
        result, names = launched.call(function, args)
        launched.write(folder, f"result-{rank}", result)
    except SystemExit:
        raise
    except BaseException as error:
        text = launched.describe(error, FILES) | {"place": _place(error)}
        launched.write(folder, f"error-{rank}", json.dumps(text).encode())
    launched.flush()
    line.sendall(b".")
    return names


def _settle(rank, job):
    """Join the group, or not; return the names that cells start with."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # of cloudpickle too: functions go by value
    main.__dict__.update(
        torch=torch, dist=dist, rank=rank, world_size=job["world_size"]
    )
    if job["group"]:
        launched.join(rank, job, job["folder"])
    else:
        main.store = f"{job['folder']}/meeting"
    return pickle.dumps(None), main.__dict__


def _run_cell(cell, names):
    """Run the cell; return its last value, packed, and the names."""
    if "values" in cell:
        names.update(pickle.loads(cell["values"]))
        return pickle.dumps(None), names
    lines = cell["code"].splitlines(True)
    linecache.cache[cell["name"]] = len(cell["code"]), None, lines, cell["name"]
    tree = ast.parse(cell["code"], cell["name"])
    last = tree.body[-1:] and isinstance(tree.body[-1], ast.Expr) and tree.body.pop()
    compiled = functools.partial(compile, filename=cell["name"], dont_inherit=True)
    value = None
    exec(compiled(tree, mode="exec"), names)
    if last:
        value = eval(compiled(ast.Expression(last.value), mode="eval"), names)
    if cell["show"] and value is not None:
        print(_text(value))
    if cell["show"] is not None:
        value = None
    try:
        return launched.pack(value, ""), names
    except TypeError:
        return pickle.dumps(_text(value)), names


def _text(value):
    """Return what the value prints, without addresses, which are new in each run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _place(error):
    """Return the innermost line of a cell that the error came through, or None."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return next(
        (place(*frame) for frame in reversed(frames) if re.fullmatch(CELL, frame[0])),
        None,
    )
