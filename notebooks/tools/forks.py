"""Run notebooks, each in a fork of one process that has imported what lessons import.

    Job        a notebook to run: its path, its cells, the folder that it runs in
    Run        what became of it: cells with outputs, seconds, failure
    run_all    run jobs, so many at once; yield each one's run as it ends
    warm       import what lessons need, once

A fork has no kernel and no port. It is IPython itself that runs the cells; what they
print and show is kept in order, as a notebook keeps it. A fork leads a session of its
own: when its time is up, or at Ctrl-C, it ends with the programs that it has started.
"""

import atexit
import importlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections import namedtuple
from contextlib import contextmanager
from multiprocessing.connection import wait

import nbformat
from nbformat.v4 import new_output
from stored import code_cells

Job = namedtuple("Job", "path nb folder")
Run = namedtuple("Run", "job nb seconds failure")  # failure: "", or where and how it failed
CHARTS = "module://matplotlib_inline.backend_inline"
WARM = """torch manual_dp manual_dp.ranks matplotlib.pyplot matplotlib_inline.backend_inline
    IPython.core.interactiveshell ipykernel.compiler course.lab.figures.player
    course.lab.figures.plot""".split()


def warm():
    """Import what lessons need; forks have it then."""
    for name in WARM:
        importlib.import_module(name)


def run_all(jobs, at_once=1, timeout=900, heard=lambda path, cells: None):
    """Yield the Run of each job as it ends; so many run at once.

    jobs: asked for the next one when it can start. timeout: seconds for a notebook.
    heard(path, cells) is told how many cells are done.
    """
    warm()
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
                    heard(fork.job.path, fork.cells)
        finally:
            for fork in running:
                fork.stop()


class _Fork:
    """A notebook that runs in a process of its own."""

    def __init__(self, job, place, timeout):
        self.job, self.cells, self.outputs, self.failure = job, 0, [], None
        self.start = time.perf_counter()
        self.timeout = timeout
        self.line, line = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_run, args=(job, place, line))
        self.process.start()
        line.close()

    def ended(self):
        """Take what the fork has told; return whether it has finished."""
        alive = self.process.is_alive()  # asked first: what it told before it died counts
        try:
            while self.failure is None and self.line.poll():
                outputs, self.failure = self.line.recv()
                self.outputs.append(outputs)
                self.cells += 1
        except EOFError:
            alive = False
        if self.failure is None and time.perf_counter() - self.start > self.timeout:
            self.failure = self._failed(f"it took longer than {self.timeout} s")
        elif self.failure is None and not alive:
            self.failure = self._failed("its process ended")
        return self.failure is not None

    def _failed(self, why):
        return f"FAILED in cell {code_cells(self.job.nb)[self.cells].id}: {why}"

    def run(self):
        """Return the notebook with its outputs."""
        if self.failure == "":
            self.process.join(20)  # it removes its files
        self.stop()
        for cell, (outputs, number) in zip(code_cells(self.job.nb), self.outputs):
            cell.update(outputs=[nbformat.from_dict(output) for output in outputs],
                        execution_count=number)
        seconds = time.perf_counter() - self.start
        return Run(self.job, self.job.nb, seconds, self.failure)

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
    """Run the cells; tell `line` each cell's outputs, and "", or how it failed."""
    os.setsid()
    # what the parent does at its exit, such as removing its folders, is not for a fork
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it
    os.chdir(job.folder)
    sys.path.insert(0, "")
    os.environ["MPLBACKEND"] = CHARTS  # as a kernel does
    importlib.import_module("matplotlib").use(CHARTS)
    kept = _Kept()
    shell = _shell(kept, place)
    code = code_cells(job.nb)
    with kept.streams():
        for cell in code:
            failure = ""
            kept.outputs.clear()
            number = shell.execution_count if cell.source.strip() else None
            if number:
                failure = _failure(shell, cell)
            done = None if not failure and cell is not code[-1] else failure
            line.send(((list(kept.outputs), number), done))
            if failure:
                break
        atexit._run_exitfuncs()  # temporary folders go, ranks that stay end


def _failure(shell, cell):
    done = shell.run_cell(cell.source, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    if error is None and not shell.exit_now:
        return ""
    said = f"{type(error).__name__}: {error}" if error else "exit() ends the lesson"
    return f"FAILED in cell {cell.id}: {(said.strip().splitlines() or [''])[0]}"


class _Kept:
    """What a cell printed and showed, in order, as a notebook keeps it."""

    def __init__(self):
        self.outputs, self.lock = [], threading.Lock()

    def add(self, kind, **contents):
        """Add an output; a stream's text goes on where the same stream was last."""
        with self.lock:
            last = self.outputs[-1] if self.outputs else {}
            if kind == "stream" and last.get("name") == contents["name"]:
                last["text"] += contents["text"]
            else:
                self.outputs.append(new_output(kind, **contents))

    @contextmanager
    def streams(self):
        """Take what Python prints; what programs write past it is not a cell's."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream("stdout", self), _Stream("stderr", self)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Stream(io.TextIOBase):
    """A text file for what cells print."""

    encoding = "utf-8"

    def __init__(self, name, kept):
        self.name, self.kept = name, kept

    def writable(self):
        """Say that it can be written to."""
        return True

    def write(self, text):
        """Keep the text."""
        if text:
            self.kept.add("stream", name=self.name, text=text)
        return len(text)


def _shell(kept, place):
    """Return IPython's shell, which gives its outputs to `kept`."""
    from ipykernel.compiler import XCachingCompiler  # names a cell's file as kernels do
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, source=None, **options):
            kept.add("display_data", data=dict(data), metadata=dict(metadata or {}))

        def clear_output(self, wait=False):
            kept.outputs.clear()

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            kept.add("execute_result", data=dict(format_dict), metadata=dict(md_dict or {}),
                     execution_count=self.prompt_count)

        def finish_displayhook(self):
            pass

    class Shell(InteractiveShell):
        exit_now = False

        def enable_gui(self, gui=None):
            pass

        def ask_exit(self):
            self.exit_now = True

        def _showtraceback(self, etype, evalue, stb):
            kept.add("error", ename=etype.__name__, evalue=str(evalue), traceback=list(stb))

    config = Config(HistoryManager={"enabled": False},
                    InteractiveShell={"colors": "nocolor"})
    return Shell.instance(config=config, ipython_dir=place, displayhook_class=Hook,
                          display_pub_class=Publisher, compiler_class=XCachingCompiler)
