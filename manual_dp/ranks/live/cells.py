"""What a rank that stays does: run cell after cell, and keep the names they make.

    run_cells   set up the rank, join the group, run a cell for each byte that arrives

Files in the launch's folder, beside those of launch/rank.py:

    cell       what to run, or values to keep: written by the warden
    meeting    for the FileStore of a group that a cell opens (`store`)
"""

import ast
import functools
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
from manual_dp.ranks.launch.verdict import read_bytes
from manual_dp.ranks.live.cell_verdict import CELL, cell_line

FILES = __file__, launched.__file__  # a traceback begins below their frames


def run_cells(rank, job, line):
    """Run cells until `line` closes or a cell ends the process; never return."""
    folder, code = job["folder"], 1
    try:
        try:
            launched.setup_rank(rank, job, folder)
            names = _answer(rank, job, line, _make_namespace, rank, job)
            while line.recv(1):
                cell = pickle.loads(read_bytes(folder, "cell"))
                _answer(rank, job, line, _run_cell, cell, names)
        except SystemExit as error:
            code = launched.system_exit_code(error)
        launched.close_group(job["world_size"], folder, wait=False)
    finally:  # or this fork would go on with the warden's own code
        os._exit(code & 0xFF)


def _answer(rank, job, line, function, *args):
    """Call the function; write its result or its error, and send a byte when it stands.

    The function returns a packed result, and the names for cells; return these.
    """
    names = None
    try:
        result, names = launched.call(function, args)
        launched.write(job["folder"], f"result-{rank}", result)
    except SystemExit:
        raise
    except BaseException as error:
        launched.write_error(rank, job, error, _describe_error)
    launched.flush()
    line.sendall(b".")
    return names


def _describe_error(error):
    """Do as describe_error does; add the innermost line of a cell, or None."""
    described = {**launched.describe_error(error, FILES), "cell_line": None}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if re.fullmatch(CELL, frame.filename):
            described["cell_line"] = cell_line(frame.filename, frame.lineno)
            break
    return described


def _make_namespace(rank, job):
    """Join the group, or not; return a packed None, and the names that cells know."""
    main = types.ModuleType("__main__")
    # cloudpickle, too, looks here: it sends the functions of __main__ by value
    sys.modules["__main__"] = main
    main.__dict__.update(
        torch=torch, dist=dist, rank=rank, world_size=job["world_size"]
    )
    if job["group"]:
        launched.join_group(rank, job, job["folder"])
    else:
        main.store = f"{job['folder']}/meeting"
    return pickle.dumps(None), main.__dict__


def _run_cell(cell, names):
    """Run the cell; return its last value, packed, and the names."""
    if "values" in cell:
        names.update(pickle.loads(cell["values"]))
        return pickle.dumps(None), names
    lines = cell["code"].splitlines(True)
    # for tracebacks and inspect.getsource: no file holds these lines
    linecache.cache[cell["name"]] = len(cell["code"]), None, lines, cell["name"]
    tree = ast.parse(cell["code"], cell["name"])
    last = value = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
    # dont_inherit: without the __future__ imports of this file
    compiled = functools.partial(compile, filename=cell["name"], dont_inherit=True)
    exec(compiled(tree, mode="exec"), names)
    if last:
        value = eval(compiled(ast.Expression(last.value), mode="eval"), names)
    if cell["show"] and value is not None:
        print(_text(value))
    if cell["show"] is not None:  # then the value is not sent, shown or not
        value = None
    try:
        return launched.pack(value, ""), names
    except TypeError:  # it cannot be sent
        return pickle.dumps(_text(value)), names


def _text(value):
    """Return the value's repr, without addresses: they differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
