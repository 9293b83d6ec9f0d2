"""Run notebooks, each in a fork of one process that has imported what lessons import.

    Run        what became of a notebook: cells with outputs, seconds, failure
    run_all    run notebooks, so many at once; yield each one's run as it ends

A fork has no port and no kernel around it. The kernel's own shell runs the cells; what
it would send to a notebook is kept. A fork leads a session of its own: when its time is
up, or at Ctrl-C, it ends with the programs that it has started.
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

Run = namedtuple(
    "Run", "path nb seconds failure"
)  # failure: "", or where and how it failed
CHARTS = "module://matplotlib_inline.backend_inline"
WARM = """torch manual_dp manual_dp.ranks matplotlib.pyplot matplotlib_inline.backend_inline
    ipykernel.zmqshell ipykernel.compiler nbconvert.preprocessors
    course.lab.figures.player course.lab.figures.plot""".split()


def run_all(jobs, at_once=1, timeout=900, heard=lambda path: None):
    """Yield the Run of each job, a notebook's path and its cells, as it ends.

    It runs in the folder of its path, `timeout` seconds at most. heard(path) is told of
    each cell that is done.
    """
    for name in WARM:
        importlib.import_module(name)
    waiting, running = list(jobs), []
    with tempfile.TemporaryDirectory(prefix="lessons-") as place:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(_Fork(*waiting.pop(0), place, timeout))
                wait([fork.line for fork in running], timeout=0.2)
                for fork in [fork for fork in running if fork.ended(heard)]:
                    running.remove(fork)
                    yield fork.stop(patience=20)
        finally:
            for fork in running:
                fork.stop()


class _Fork:
    """A notebook that runs in a process of its own."""

    def __init__(self, path, nb, place, timeout):
        self.path, self.nb, self.left, self.failure = (
            path,
            nb,
            code_cells(nb),
            "",
        )
        self.start, self.timeout = time.perf_counter(), timeout
        self.line, line = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(
            target=_run, args=(path.parent, nb, place, line)
        )
        self.process.start()
        line.close()

    def ended(self, heard):
        """Take what the fork has told; return whether it has finished."""
        alive = (
            self.process.is_alive()
        )  # asked first: what it told before it died counts
        try:
            while not self.failure and self.left and self.line.poll():
                outputs, number, self.failure = self.line.recv()
                self.left.pop(0).update(
                    outputs=outputs, execution_count=number
                )
                heard(self.path)
        except EOFError:
            alive = False
        late = time.perf_counter() - self.start > self.timeout
        if not self.failure and self.left and (late or not alive):
            why = (
                f"it took longer than {self.timeout} s"
                if late
                else "its process ended"
            )
            self.failure = f"FAILED in cell {self.left[0].id}: {why}"
        return bool(self.failure or not self.left)

    def stop(self, patience=0):
        """End the fork and what it has started; return its run."""
        if not self.failure:
            self.process.join(patience)  # it removes its files
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()  # it leads no session yet
        self.process.join()
        self.line.close()
        return Run(
            self.path, self.nb, time.perf_counter() - self.start, self.failure
        )


# in the fork


def _run(folder, nb, place, line):
    """Run the cells; tell `line` each one's outputs, number, and "" or a failure."""
    os.setsid()
    # what the parent does at its exit, such as removing its folders, is not for a fork
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # as a kernel has it
    os.chdir(folder)
    sys.path.insert(0, "")
    os.environ["MPLBACKEND"] = CHARTS  # as a kernel does
    importlib.import_module("matplotlib").use(CHARTS)
    shell, failure = _shell(place), ""
    for cell in code_cells(nb):
        number, shell.cell.outputs = None, []
        if cell.source.strip():
            number, failure = shell.execution_count, _failure(shell, cell)
        line.send((shell.outputs(), number, failure))
        if failure:
            break
    atexit._run_exitfuncs()  # temporary folders go, ranks that stay end


def _failure(shell, cell):
    done = shell.run_cell(cell.source, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    if error is None:
        return ""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return f"FAILED in cell {cell.id}: {said}"


def _shell(place):
    """Return the kernel's shell; its `cell` has what it would send to a notebook."""
    from ipykernel.compiler import (
        XCachingCompiler,
    )  # names a cell's file as kernels do
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
            return (
                CoalesceStreamsPreprocessor()
                .preprocess_cell(kept, {}, 0)[0]
                .outputs
            )

        def enable_gui(self, gui=None):
            pass

    nothing = os.open(
        os.devnull, os.O_RDWR
    )  # what programs write is not a cell's
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    session, sys.stdout, sys.stderr = (
        Kept(),
        Stream("stdout"),
        Stream("stderr"),
    )
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
