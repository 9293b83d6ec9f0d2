"""Kernels that are spoken to through files: a port can be taken before it is bound.

    ipc               what a kernel manager needs for it
    last_words        a file for what a kernel says that no cell hears
    let_signals_stop  end at once at Ctrl-C or SIGTERM
    unless_stopped    for asyncio: what to say of a task; nothing, if these ended it

jupyter_client chooses five free TCP ports for a kernel, which binds them a second
later. Meanwhile ranks that start beside it may have drawn one of them; then the kernel
never answers. Sockets in a folder of our own have names that nobody else draws.
"""

import contextlib
import functools
import itertools
import os
import re
import signal
import sys
import tempfile

from tqdm import tqdm

LONGEST = 100  # characters of a socket's path: Linux takes 107, macOS 103
NUMBERS = itertools.count()
CLOSED = re.compile(
    r"ERROR:tornado\.general:Uncaught exception in ZMQStream callback\nTraceback .*\n"
    r"(?: .*\n)*.* in process_control\n(?: .*\n)+(?:zmq\.error|AttributeError: 'None).*\n")


def ipc():
    """Return the arguments for one more kernel manager; none where there is only TCP.

    The files lie in a temporary folder, which goes when this process does.
    """
    place = os.path.join(_folder().name, str(next(NUMBERS)))
    if os.name != "posix" or len(os.fsencode(f"{place}-ipc-1")) > LONGEST:
        return {}
    return {"transport": "ipc", "connection_file": f"{place}.json"}


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="kernels-")


@contextlib.contextmanager
def last_words():
    """Give a file to be a kernel's stderr; say at the end what is in it.

    Cells get what is written while they run. The rest is of a crash, or of exit
    handlers; or a kernel closed its sockets while another thread of it still answered
    the request to end. That is ipykernel's affair, and left out.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            yield said
        finally:
            said.seek(0)
            if words := CLOSED.sub("", said.read()):
                tqdm.write(words, file=sys.stderr, end="")


def let_signals_stop():
    """Raise KeyboardInterrupt at Ctrl-C, unless it is ignored, and at SIGTERM.

    The handler is not Python's own: in its place asyncio would set one that cancels a
    task, which nbclient does not always notice.
    """
    def stop(*given):
        signal.default_int_handler(*given)
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def unless_stopped(loop, context):
    """Say what asyncio has to say, unless it is of a task that a signal ended.

    A signal that comes while a task of nbclient's runs ends this one; so those that
    wait for it end in no order, which asyncio would complain of at length.
    """
    task, error = context.get("task"), context.get("exception")
    if not (task and task.cancelling() or isinstance(error, KeyboardInterrupt)):
        loop.default_exception_handler(context)
