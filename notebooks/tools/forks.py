"""Run notebooks, each in a fork of one process that has imported what lessons import.

    Job        a notebook to run: its path, its cells, the folder that it runs in
    Run        what became of it: cells with outputs, seconds, failure
    run_all    run jobs, so many at once; yield each one's run as it ends

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

Job = namedtuple("Job", "path nb folder")
Run = namedtuple("Run", "job nb seconds failure")  # failure: "", or where and how it failed
CHARTS = "module://matplotlib_inline.backend_inline"
WARM = """torch manual_dp manual_dp.ranks matplotlib.pyplot matplotlib_inline.backend_inline
    ipykernel.zmqshell ipykernel.compiler nbconvert.preprocessors
    course.lab.figures.player course.lab.figures.plot""".split()


def run_all(jobs, at_once=1, timeout=900, heard=lambda path, cells: None):
    """Yield the Run of each job as it ends; so many run at once.

    jobs: asked for the next one when it can start. timeout: seconds for a notebook.
    heard(path, cells) is told how many cells are done.
    """
    for name in WARM:
        importlib.import_module(name)
    waiting, running, more = iter(jobs), [], True
    with tempfile.TemporaryDirectory(prefix="lessons-") as place:
        try:
            while more or running:
                while more and len(running) < at_once:
                    if more := next(waiting, None):
                        running.append(_Fork(more, place, timeout))
                wait([fork.line for fork in running], timeout=0.2)
                for fork in list(running):
                    if fork.ended():
                        running.remove(fork)
                        yield fork.run()
                    heard(fork.job.path, len(fork.done))
        finally:
            for fork in running:
                fork.stop()


class _Fork:
    """A notebook that runs in a process of its own."""

    def __init__(self, job, place, timeout):
        self.job, self.timeout, self.start = job, timeout, time.perf_counter()
        self.done, self.failure = [], None  # each cell's outputs and number
        self.line, line = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(
            target=_run, args=(job, place, line))
        self.process.start()
        line.close()

    def ended(self):
        """Take what the fork has told; return whether it has finished."""
        alive = self.process.is_alive()  # asked first: what it told before it died counts
        try:
            while self.failure is None and self.line.poll():
                *cell, self.failure = self.line.recv()
                self.done.append(cell)
        except EOFError:
            alive = False
        late = time.perf_counter() - self.start > self.timeout
        if self.failure is None and (late or not alive):
            why = f"it took longer than {self.timeout} s" if late else "its process ended"
            self.failure = f"FAILED in cell {code_cells(self.job.nb)[len(self.done)].id}: {why}"
        return self.failure is not None

    def run(self):
        """Return the notebook with its outputs."""
        if self.failure == "":
            self.process.join(20)  # it removes its files
        self.stop()
        for cell, (outputs, number) in zip(code_cells(self.job.nb), self.done):
            cell.update(outputs=outputs, execution_count=number)
        return Run(self.job, self.job.nb, time.perf_counter() - self.start, self.failure)

    def stop(self):
        """End the fork and what it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()  # it leads no session yet
        self.process.join()
        self.line.close()


# in the fork

def _run(job, place, line):
    """Run the cells; tell `line` each one's outputs, number, and None, "" or a failure."""
    os.setsid()
    # what the parent does at its exit, such as removing its folders, is not for a fork
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it
    os.chdir(job.folder)
    sys.path.insert(0, "")
    os.environ["MPLBACKEND"] = CHARTS  # as a kernel does
    importlib.import_module("matplotlib").use(CHARTS)
    shell, code = _shell(place), code_cells(job.nb)
    for cell in code:
        number, failure = None, ""
        shell.cell.outputs = []
        if cell.source.strip():
            number, failure = shell.execution_count, _failure(shell, cell)
        line.send((shell.outputs(), number, failure if failure or cell is code[-1] else None))
        if failure:
            break
    atexit._run_exitfuncs()  # temporary folders go, ranks that stay end


def _failure(shell, cell):
    done = shell.run_cell(cell.source, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    if error is None and not shell.left:
        return ""
    said = f"{type(error).__name__}: {error}" if error else "exit() ends the lesson"
    return f"FAILED in cell {cell.id}: {(said.strip().splitlines() or [''])[0]}"


def _shell(place):
    """Return the kernel's shell; its `cell` has what it would send to a notebook."""
    from ipykernel.compiler import XCachingCompiler  # names a cell's file as kernels do
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
        cell, left = kept, False

        def outputs(self):
            return CoalesceStreamsPreprocessor().preprocess_cell(kept, {}, 0)[0].outputs

        def enable_gui(self, gui=None):
            pass

        def ask_exit(self):
            self.left = True

    nothing = os.open(os.devnull, os.O_RDWR)  # what programs write is not a cell's
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    session, sys.stdout, sys.stderr = Kept(), Stream("stdout"), Stream("stderr")
    shell = Shell.instance(ipython_dir=place, compiler_class=XCachingCompiler, config=Config(
        HistoryManager={"enabled": False}, InteractiveShell={"colors": "nocolor"}))
    shell.displayhook.session = shell.display_pub.session = session
    return shell
