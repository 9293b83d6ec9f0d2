"""Keep what runs an answer, and reads its numbers, out of the answer's reach.

    guard     refuse from now on to show a cell the frames and objects that are not its
    refuse    a cell that names the ways into other functions
    Replaced  notice that functions which read the numbers are others now

An answer runs in one process with the code that measures it. That code is loaded twice:
what an answer can import is a copy of what measures it (child.py). Left are the ways of
the language itself: the stack, the collector's list of all objects, a function's
insides, raw memory. A hook that no code can take away watches over them: PEP 578.
"""

import builtins
import json
import sys
import types

import torch
import torch.distributed as dist
from torch.nn import functional as F

WORDS = {"__globals__", "__closure__", "__code__", "cell_contents", "__subclasses__",
         "f_back", "f_globals", "f_locals", "gi_frame", "tb_frame"}
# what the hook hears, and by which name a library's own line asks for it
EVENTS = {"sys._getframe": "_getframe", "sys._current_frames": "_current_frames",
          "sys._current_exceptions": "_current_exceptions",
          "sys.settrace": "settrace", "sys.setprofile": "setprofile",
          "sys.monitoring.register_callback": "register_callback",
          "sys.addaudithook": "addaudithook", "gc.get_objects": "get_objects",
          "gc.get_referrers": "get_referrers", "gc.get_referents": "get_referents",
          "ctypes.dlopen": "_dlopen", "ctypes.dlsym": "", "ctypes.string_at": "",
          "ctypes.cdata": "", "code.__new__": "", "marshal.loads": "",
          "resource.prlimit": ""}  # where other processes can be seen
FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
INSIDES = {"__code__", "__defaults__", "__kwdefaults__"}
PASSED = ("/inspect.py", "/ctypes/__init__.py")  # they ask for whoever calls them
OWN = {"manual_seed"}  # torch's compiler replaces it as it is imported
CELL = "<"  # how the names of cells begin, and of strings; files of libraries do not


class Sealed(RuntimeError):
    """An answer reached for what runs it."""

    __module__ = "builtins"  # so that a message names it without its page


def guard():
    """Refuse the ways into what runs an answer, wherever a cell's code asks."""
    look, busy = sys._getframe, []

    def hook(event, args):
        name = EVENTS.get(event)
        if name is None and not _touches(event, args) or busy:
            return
        busy.append(1)
        try:
            refused = _asked_by_cell(look(1), name)
        finally:
            busy.clear()
        if refused:
            raise Sealed(f"an answer cannot use {name or event} while it is graded")
    sys.addaudithook(hook)


def _touches(event, args):
    """Return whether this asks for a frame, changes a function, or poses as a file."""
    if event == "object.__getattr__":
        return args[1] in FRAMES
    if event == "object.__setattr__":
        return args[1] in INSIDES
    return (event == "compile" and isinstance(args[1], str)
            and not args[1].startswith(CELL))


def _asked_by_cell(frame, name):
    """Return whether a cell's line asks, itself or by a page that passes it on."""
    asks = frame
    while asks.f_back and asks.f_code.co_filename.endswith(PASSED):
        asks = asks.f_back
    lends = asks.f_code.co_filename.endswith("/traceback.py")
    if lends and asks.f_code.co_name.startswith("walk"):
        asks = asks.f_back or asks
    if asks.f_code.co_filename.startswith(CELL):
        return not asks.f_code.co_filename.startswith("<frozen ")
    return bool(name) and name not in frame.f_code.co_names


def refuse(source, file):
    """Raise Sealed if a cell names a way into functions; SyntaxError if not Python."""
    code = compile(source, file, "exec")
    if words := sorted(WORDS & set(_names(code))):
        raise Sealed(f"an answer cannot use {', '.join(words)} while it is graded")


def _names(code):
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, str):
            yield value
        elif isinstance(value, types.CodeType):
            yield from _names(value)


class Replaced:
    """Remember the functions of torch and Python that every reading goes through."""

    def __init__(self):
        self.homes = {home: dict(vars(home)) for home in (
            torch.Tensor, torch, F, dist, json, builtins, torch.nn.Module)}

    def refuse(self):
        """Raise Sealed if one of them is not what it was."""
        for home, before in self.homes.items():
            now = vars(home)
            changed = [name for name, value in before.items() if callable(value)
                       and now.get(name) is not value and name not in OWN]
            # what a class has from another one can be covered
            changed += [name for name in set(now) - set(before) for base in
                        getattr(home, "__mro__", ())[1:] if name in vars(base)]
            if changed:
                raise Sealed(f"an answer cannot replace {home.__name__}.{changed[0]} "
                             "while it is graded")
