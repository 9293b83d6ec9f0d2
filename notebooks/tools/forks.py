"""Run notebooks, each in a fork of one process that has imported what lessons import.

    Run        a notebook that ran: its path, cells with outputs, seconds, failure
    run_all    run notebooks, several at once; yield each one's Run when it ends

A fork opens no port and starts no kernel. The kernel's own shell runs the cells, and we
keep the messages that it would send to a notebook. A fork leads a session of its own:
when its time is up, or at Ctrl-C, we kill it with the programs that it has started.
"""

import atexit
import importlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import weakref
from collections import namedtuple
from multiprocessing.connection import wait

import nbformat
from nbformat.v4 import output_from_msg
from stored import code_cells

# failure: "", or where and how it failed
Run = namedtuple("Run", "path nb seconds failure")
CHARTS = "module://matplotlib_inline.backend_inline"
# imported once, before the forks
WARM = """torch manual_dp manual_dp.ranks matplotlib.pyplot matplotlib_inline.backend_inline
    ipykernel.zmqshell ipykernel.compiler nbconvert.preprocessors
    course.lab.figures.player course.lab.figures.plot""".split()


def run_all(jobs, at_once=1, timeout=900, on_cell=lambda path: None):
    """Run each job, a pair of a notebook's path and its cells; yield its Run at its end.

    A job runs in the folder of its path, for `timeout` seconds at most. on_cell(path)
    is called after each cell.
    """
    for name in WARM:
        importlib.import_module(name)
    from manual_dp.ranks.launch.launch import lend_nursery  # it imports torch

    nursery = lend_nursery()
    waiting, running = list(jobs), []
    with tempfile.TemporaryDirectory(prefix="lessons-") as place:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    running.append(_Fork(*job, place, timeout, nursery))
                wait([fork.line for fork in running], timeout=0.2)
                for fork in [fork for fork in running if fork.ended(on_cell)]:
                    running.remove(fork)
                    yield fork.stop(patience=20)
        finally:
            for fork in running:
                fork.stop()


class _Fork:
    """A notebook that runs in a process of its own."""

    def __init__(self, path, nb, place, timeout, nursery):
        self.path, self.nb = path, nb
        self.left = code_cells(nb)  # those that have not run yet
        self.failure = ""
        self.start, self.timeout = time.perf_counter(), timeout
        self.line, line = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(
            target=_run, args=(path.parent, nb, place, line, nursery)
        )
        self.process.start()
        line.close()

    def ended(self, on_cell):
        """Take the outputs that the fork has sent; return whether it has finished."""
        # asked before reading: then all that a fork sent before it died is read
        alive = self.process.is_alive()
        try:
            while not self.failure and self.left and self.line.poll():
                outputs, number, self.failure = self.line.recv()
                self.left.pop(0).update(
                    outputs=outputs, execution_count=number
                )
                on_cell(self.path)
        except EOFError:
            alive = False
        late = time.perf_counter() - self.start > self.timeout
        if not self.failure and self.left and (late or not alive):
            why = "its process ended"
            if late:
                why = f"it took longer than {self.timeout} s"
            self.failure = f"FAILED in cell {self.left[0].id}: {why}"
        return bool(self.failure or not self.left)

    def stop(self, patience=0):
        """Kill the fork and what it has started; return its Run.

        A fork that did not fail gets `patience` seconds to remove its files.
        """
        if not self.failure:
            self.process.join(patience)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()  # it has no session of its own yet
        self.process.join()
        self.line.close()
        return Run(
            self.path, self.nb, time.perf_counter() - self.start, self.failure
        )


# in the fork


def _run(folder, nb, place, line, nursery):
    """Run the cells; send each one's outputs, number, and "" or a failure to `line`."""
    os.setsid()
    # forget what the parent does at its exit: a fork must not remove its folders
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # as a kernel does
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from manual_dp.ranks.launch.launch import borrow_nursery

    borrow_nursery(nursery)  # its own would import for some 7 s
    os.chdir(folder)
    sys.path.insert(0, "")
    os.environ["MPLBACKEND"] = CHARTS  # as a kernel does
    importlib.import_module("matplotlib").use(CHARTS)
    shell = _shell(place)
    for cell in code_cells(nb):
        number, failure = None, ""
        shell.cell.outputs = []
        if cell.source.strip():  # an empty cell gets no number
            number, failure = shell.execution_count, _failure(shell, cell)
        line.send((shell.outputs(), number, failure))
        if failure:
            break
    # multiprocessing ends a fork without this: temporary folders go, live ranks end
    atexit._run_exitfuncs()


def _failure(shell, cell):
    """Run a cell; return "", or its id and the error that it raised."""
    done = shell.run_cell(cell.source, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    if error is None:
        return ""
    said = f"{type(error).__name__}: {error}".strip().splitlines()
    return "\n".join([f"FAILED in cell {cell.id}: {said[0]}", *said[1:6]])


def _shell(place):
    """Return the kernel's shell, which puts outputs into `cell` and sends nothing."""
    # it names a cell's file as kernels do
    from ipykernel.compiler import XCachingCompiler
    from ipykernel.zmqshell import ZMQInteractiveShell
    from jupyter_client.session import Session
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor
    from traitlets.config import Config

    kept = nbformat.NotebookNode(outputs=[])

    class Kept(Session):
        def send(self, socket, message, content=None, *args, **kwargs):
            if isinstance(message, str):
                message = self.msg(message, content)
            if message["msg_type"] == "clear_output":
                kept.outputs.clear()
            else:
                kept.outputs.append(output_from_msg(message))

    class Stream(io.TextIOBase):
        encoding = "utf-8"

        def __init__(self, name):
            self.name = name

        def write(self, text):
            session.send(None, "stream", {"name": self.name, "text": text})
            return len(text)

    class Shell(ZMQInteractiveShell):
        cell = kept

        def outputs(self):
            joined, _ = CoalesceStreamsPreprocessor().preprocess_cell(
                kept, {}, 0
            )
            return joined.outputs

        def enable_gui(self, gui=None):
            pass

    # a program that a cell starts writes to these files: it is no output of the cell
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    session = Kept()
    sys.stdout, sys.stderr = Stream("stdout"), Stream("stderr")
    shell = Shell.instance(
        ipython_dir=place,
        compiler_class=XCachingCompiler,
        config=Config(
            HistoryManager={"enabled": False},
            InteractiveShell={"colors": "nocolor"},
        ),
    )
    shell.displayhook.session = shell.display_pub.session = session
    return shell
