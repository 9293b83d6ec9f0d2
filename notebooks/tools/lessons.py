"""Run the lessons in order, from top to bottom; make the book, or store the outputs.

    python notebooks/tools/lessons.py [--lesson 3]           a book in build/course
    ... --refresh [--lesson 3 | --lesson ps1]      outputs into lessons, problem sets

Every lesson gets a kernel of the Python that runs this file, whatever kernel its
metadata names, with the notebook's folder as working directory. After a cell that
fails, the rest of its lesson is left out and the next lesson runs. A book has all
lessons: those that were not run just now, with the outputs that are stored.

    execute     one lesson; returns where it failed    nbclient
    refresh     its outputs, stored where it lies      nbformat
    make_book   all of them, to read                   book.py, jupyter-book
"""

import argparse
import asyncio
import copy
import re
import sys
import time
from pathlib import Path

import book
import nbformat
from figures import few_colours
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from kernels import ipc, last_words, let_signals_stop, unless_stopped
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm
from whole import write_text

ROW = "{:<28} {:7.1f}  {}"
ADDRESS = r"https://github\.com/[\w.-]+/[\w.-]+/?"
KERNEL = dict(name="python3", display_name="Python 3 (ipykernel)", language="python")


async def execute(nb, folder, timeout, bar):
    """Run the cells of `nb` in place; return "", or where and how it failed."""
    # no folder to look in: a kernel named python3 that another Python installed for
    # this user would be taken before ours
    kernel = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
                                **ipc())
    client = NotebookClient(
        nb, kernel, timeout=timeout, record_timing=False, coalesce_streams=True,
        on_cell_executed=_refuse_exit, extra_arguments=["--log-level=ERROR"])
    failure = "stopped"
    asyncio.get_running_loop().set_exception_handler(unless_stopped)
    with last_words() as words:
        try:
            # not nbclient's own `execute`, whose Ctrl-C ends a kernel, not the course
            await client.async_start_new_kernel(cwd=str(folder), stderr=words)
            await client.async_start_new_kernel_client()
            failure = await _execute_cells(client, bar)
        finally:
            if client.kc:
                client.kc.stop_channels()
            await kernel.shutdown_kernel(now=bool(failure))
    return failure


async def _execute_cells(client, bar):
    for i, cell in enumerate(client.nb.cells):
        try:
            await client.async_execute_cell(cell, i)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            if asyncio.current_task().cancelling():
                raise asyncio.CancelledError from None  # by Ctrl-C: not a dead kernel
            if isinstance(error, CellExecutionError):
                error = f"{error.ename}: {error.evalue}"
            return f"FAILED in cell {cell.id}: {str(error).strip().splitlines()[0]}"
        bar.update()
    return ""


def _refuse_exit(cell, cell_index, execute_reply):
    # the kernel goes some time after the reply, perhaps with later cells already run
    payload = execute_reply["content"].get("payload", [])
    if any(item["source"] == "ask_exit" for item in payload):
        raise DeadKernelError("exit() ends the kernel")


def store(nb):
    """Bring `nb` into the form that git keeps: nothing of this machine or run."""
    nb.metadata = {"kernelspec": KERNEL}
    for cell in nb.cells:
        kept = {key: cell.metadata.get(key) for key in ("nbgrader", "tags")}
        cell.metadata = {key: value for key, value in kept.items() if value}


def refresh(path, nb):
    """Write the executed `nb` to `path`; return whether that changed the file.

    Where nothing but outputs tagged `nbval-ignore-output` differs, the old ones
    stay: a lesson that has not changed stays the same file, with its timings.
    """
    few_colours(nb)
    before = path.read_text(encoding="utf-8")
    old = nbformat.reads(before, 4)
    store(old)
    if _compared(old) == _compared(nb):
        nb = old
    after = nbformat.writes(nb).rstrip("\n") + "\n"
    if after != before:
        write_text(path, after)
    return after != before


def _compared(nb):
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            cell.outputs = [output.output_type for output in cell.get("outputs", [])]
    return nb


def run_lesson(path, args):
    """Run one lesson, say how it went, store it if asked to; return the run."""
    nb, start = nbformat.read(path, 4), time.perf_counter()
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    with tqdm(nb.cells, path.stem, leave=False, disable=None) as bar:
        failure = asyncio.run(execute(nb, path.parent, args.timeout, bar))
    seconds = time.perf_counter() - start
    store(nb)
    done = "ok"
    if args.refresh and not failure:
        done = "refreshed" if refresh(path, nb) else "unchanged"
    print(ROW.format(path.stem, seconds, failure or done), flush=True)
    return book.Run(path, nb, seconds, failure)


def make_book(args, runs):
    """Build the book and say where it is; return whether there is one."""
    start = time.perf_counter()
    with tqdm(total=1, desc="the book", leave=False, disable=None,
              bar_format="{desc}: {percentage:3.0f}%|{bar}|") as bar:
        def progress(share):
            bar.n = share
            bar.refresh()
        try:
            pages, warnings = book.build(args.notebooks, args.out, runs,
                                         args.repository, progress)
        except book.BookError as error:
            pages, warnings = 0, [str(error)]
    done = f"{pages} pages" if pages else "FAILED"
    print(ROW.format("the book", time.perf_counter() - start, done))
    print(*warnings, sep="\n", end="\n" * bool(warnings))
    if pages:
        print(f"Open {args.out / 'index.html'}")
    return bool(pages)


def arguments(argv):
    """Read the command line; return it with the lessons' `paths`."""
    parser = argparse.ArgumentParser("lessons.py")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--lesson", help="its number, or ps1 (default: all)")
    parser.add_argument("--notebooks", type=Path, default="notebooks")
    parser.add_argument("--out", type=Path, default="build/course")
    parser.add_argument("--repository", default="", metavar="ADDRESS",
                        help="of a public copy: adds buttons for Binder and Colab")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell")
    args = parser.parse_args(argv)
    if args.repository and not re.fullmatch(ADDRESS, args.repository):
        parser.error("--repository is no https://github.com/owner/name")
    patterns = ["[0-9][0-9]_*.ipynb", "exercises/source/ps*/ps*.ipynb"]
    args.paths = [path for pattern in patterns[:1 + args.refresh]
                  for path in sorted(args.notebooks.glob(pattern))
                  if args.lesson is None
                  or path.stem.split("_")[0] == args.lesson.zfill(2)]
    if not args.paths:
        parser.error(f"no such lesson in {args.notebooks}")
    return args


def main(argv=None):
    """Run the lessons, make the book; return the exit status."""
    args = arguments(argv)
    let_signals_stop()
    print(f"{'lesson':<28} {'seconds':>7}  result", flush=True)
    try:
        runs = [run_lesson(path, args) for path in args.paths]
        there = args.refresh or make_book(args, runs)
    except KeyboardInterrupt:
        return 130
    return int(not there or any(run.failure for run in runs))


if __name__ == "__main__":
    sys.exit(main())
