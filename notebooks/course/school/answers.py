"""Run a learner's answer: within its time, in peace, and leave all as it was.

limit       end a block that computes too long, or waits in vain
busy        do more programs want a processor than there are?
quiet       keep warnings, logs and stderr of a block to itself, and long prints
placed      put the course's own functions where an answer finds them
settings    torch's settings, which an answer can leave changed; put sets them
kept        put them back at the end of a block
home        the module of the course that an answer was taken from
elsewhere   the helpers of an answer that another cell defines
cells       the texts of the cells in which answers are defined
learners    the part of a traceback that is a learner's own
arguments   what the function of a traceback holds as its arguments, in words
"""

import dis
import inspect
import io
import linecache
import logging
import math
import os
import signal
import sys
import sysconfig
import threading
import time
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import torch

import manual_dp

SETTINGS = {  # name: how it is read, how it is set
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
}
PATIENCE = 300  # seconds by the clock, for a block on a busy machine
PRINTED = 2000  # characters of what an answer prints that are shown
COURSE = str(Path(__file__).parents[1])
NOBODYS = (
    COURSE,
    str(Path(manual_dp.__file__).parent),
    "<frozen",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class TimeIsOver(BaseException):
    """Raised in a block after its time. No `except Exception` holds it up."""


class Busy(TimeIsOver):
    """The machine is busy: nobody knows whether the block would have come to an end."""


def busy():
    """Return whether more programs want a processor than there are, twice over."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


@contextmanager
def limit(seconds, patience=PATIENCE):
    """Raise TimeIsOver in the block that computes for so many seconds, or waits long.

    What counts is the processors' time, which a busy machine gives slowly. A block that
    waits may do so for twice as many seconds by the clock; on a busy machine for
    `patience`, and the error is Busy. With endless patience, it may wait. Only the main
    thread can be interrupted: the block of another has no limit, nor has any on
    Windows, where there is no such clock.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    over = False
    began, computed = time.monotonic(), time.process_time()

    def put_back():
        nonlocal over
        if not over:  # else others may have a clock of their own by now
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def why():
        """Return the error, if it is time to end the block."""
        worked, took = time.process_time() - computed, time.monotonic() - began
        if worked >= seconds:
            return TimeIsOver(
                f"It has computed for {seconds} s: is there a loop that does not end?"
            )
        waits = worked < took / 4 and not busy()
        if waits and 2 * seconds <= took and patience < math.inf:
            return TimeIsOver(f"It has waited for {took:.0f} s: does it wait in vain?")
        if took < patience:
            return None
        return Busy(
            f"The machine is busy: it got {worked:.0f} of {took:.0f} s. "
            "Run the cell again."
        )

    def ring(*_):
        error = None if over else why()
        if error:
            put_back()  # the error may be raised where the block's end is not seen
            raise error

    before = signal.signal(signal.SIGALRM, ring)
    try:
        beat = min(0.2, seconds)
        signal.setitimer(signal.ITIMER_REAL, beat, beat)
        yield
    finally:
        put_back()


class _Cut(io.TextIOBase):
    """A stream that hands on the first characters of what is printed, and no more."""

    def __init__(self, stream, left=PRINTED):
        self.stream, self.left = stream, left

    def write(self, text):
        if self.left > 0:
            self.stream.write(text[: self.left])
            if len(text) > self.left:
                self.stream.write("\n... (the rest of what it prints is left out)\n")
        self.left -= len(text)
        return len(text)

    def flush(self):
        self.stream.flush()

    def fileno(self):
        return self.stream.fileno()

    @property
    def encoding(self):
        return self.stream.encoding


@contextmanager
def quiet():
    """Keep to itself what a block warns of, logs, writes to stderr; cut what it prints.

    nbgrader takes anything on stderr for a failure, and gives up a notebook that prints
    ten megabytes.
    """
    disabled = logging.root.manager.disable
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        logging.disable()
        with (
            warnings.catch_warnings(),
            redirect_stderr(io.StringIO()),
            redirect_stdout(_Cut(sys.stdout)),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def settings():
    """Return torch's settings as they are now, by name."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


def put(values):
    """Make the settings what `settings` has returned before."""
    for name, value in values.items():
        read, write = SETTINGS[name]
        if read() != value:
            write(value)


@contextmanager
def kept():
    """Put torch's settings back at the end of the block, whatever it does."""
    before = settings()
    try:
        yield
    finally:
        put(before)


@contextmanager
def placed(supplied, answers):
    """Put what is `supplied` where `answers` find it by name, while the block runs.

    supplied: {name: function or class}. A name of the answer's own cell stays.
    """
    before = []
    for answer in answers:
        space = getattr(_function(answer), "__globals__", {})
        for name, part in supplied.items():
            if name not in space or _file(space[name]) != _file(answer):
                before.append((space, name, name in space, space.get(name)))
                space[name] = part
    try:
        yield
    finally:
        for space, name, there, value in reversed(before):
            space[name] = value
            if not there:
                del space[name]


def home(answer):
    """Return the module of the course that an answer was taken from, or None."""
    answer = inspect.unwrap(getattr(answer, "func", answer))  # of a functools.partial
    module = str(getattr(answer, "__module__", ""))
    return module if module.partition(".")[0] in ("manual_dp", "course") else None


def elsewhere(answers):
    """Return the names of functions and classes that answers take from other cells."""
    found = set()
    for answer in answers:
        functions = list(_functions(answer))
        for function in functions:  # it grows by the helpers beside it
            code, space = function.__code__, function.__globals__
            for name in _names(code) & space.keys():
                helper, file = space[name], _file(space[name])
                if getattr(helper, "__module__", None) != "__main__" or not file:
                    continue
                if file != code.co_filename:
                    found.add(name)
                else:
                    functions += [f for f in _functions(helper) if f not in functions]
    return found


def cells(answers):
    """Return the texts of the notebook's cells in which answers are defined."""
    own = [a for a in answers if getattr(_function(a), "__module__", "") == "__main__"]
    files = dict.fromkeys(map(_file, own))
    return ["".join(linecache.getlines(file)) for file in files]


def learners(error):
    """Return an error's traceback from the first line on that is a learner's, or None.

    A learner's is a line that is neither the course's nor a library's. The traceback
    ends where a learner calls a function of the course: how that is written may be what
    another exercise asks for.
    """
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(NOBODYS):
        trace = trace.tb_next
    here = trace
    while here and here.tb_next:
        if here.tb_next.tb_frame.f_code.co_filename.startswith(COURSE):
            here.tb_next = None
        here = here.tb_next
    return trace


def arguments(trace):
    """Return what the first function of a traceback holds as its arguments, in words.

    They are looked at after it raised: an argument that it replaced is the new one.
    """
    frame = trace.tb_frame
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    held = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    held.pop("self", None)
    return "; ".join(f"{name}: {_in_words(value)}" for name, value in held.items())


def _in_words(value, depth=0):
    if isinstance(value, torch.Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        kind = type(value).__name__
        if not value or depth > 1:
            return f"{kind} of {len(value)}"
        parts = [_in_words(part, depth + 1) for part in value]
        more = ", ..." if len(parts) > 2 else ""
        return f"{kind} of {len(value)} [{', '.join(parts[:2])}{more}]"
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= 30 else text[:26] + " ..."
    return getattr(value, "__name__", type(value).__name__)


def _functions(thing):
    """Yield the function that `thing` is, or those that a class or an object has."""
    whole = thing if isinstance(thing, type) else type(thing)
    for part in [thing, *vars(whole).values()]:
        bare = inspect.unwrap(getattr(part, "__func__", part))
        if inspect.isfunction(bare):
            yield bare


def _function(thing):
    return next(_functions(thing), None)


def _file(thing):
    """Return the file, or the cell, in which `thing` is defined."""
    return getattr(getattr(_function(thing), "__code__", None), "co_filename", None)


def _names(code):
    """Return the names that a function's code looks up, and the functions in it."""
    inner = [_names(const) for const in code.co_consts if inspect.iscode(const)]
    own = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }  # not attributes
    return own.union(*inner)
