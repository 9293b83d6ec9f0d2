"""Run the lessons in order, from top to bottom; keep pages, or store the outputs.

    python notebooks/tools/course.py [--lesson 3]              pages in build/course
    ... --refresh [--lesson 3 | --lesson ps1]      outputs into lessons, problem sets

Every lesson gets a kernel of the Python that runs this file, whatever kernel its
metadata names, with the notebook's folder as working directory. After a cell that
fails, the rest of its lesson is left out and the next lesson runs.

    execute       one lesson; returns where it failed    nbclient
    write_page    an executed lesson as an HTML file     nbconvert
    refresh       its outputs, stored where it lies      nbformat
"""

import argparse
import asyncio
import copy
import html
import os
import re
import signal
import sys
import time
from pathlib import Path

import nbformat
from figures import few_colours
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from kernels import ipc
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter
from tqdm import tqdm
from whole import write_text

INDEX = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>The lessons, as they ran here</title>
<style>
body {{ font: 16px/1.5 sans-serif; color: #222; max-width: 56rem; margin: 3rem auto }}
td, th {{ text-align: left; vertical-align: top; padding: .5rem 1.5rem .5rem 0 }}
small {{ display: block; color: #666 }}
</style><h1>The lessons, as they ran here</h1><table><tr><th>lesson<th>seconds<th>result
{}</table></html>
"""
KERNEL = dict(name="python3", display_name="Python 3 (ipykernel)", language="python")
# nbconvert's own style shows the source in an output without a fixed width
STYLE = "<style>.jp-OutputArea .highlight pre { font-family: monospace }</style>"


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
    try:
        # not nbclient's own `execute`, whose Ctrl-C ends a kernel but not the course
        await client.async_start_new_kernel(cwd=str(folder))
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


def write_page(path, nb, folder):
    """Write `nb`, a lesson in `folder`, as HTML to `path`, its links valid there."""
    # no embed_images: it parses a piece of HTML at a time, which closes <details>;
    # no require.js: it comes over the network, and no lesson needs it
    exporter = HTMLExporter(require_js_url="")
    text = exporter.from_notebook_node(nb, {"metadata": {"name": path.stem}})[0]
    text = re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', text)
    up = os.path.relpath(folder, path.parent)
    text = re.sub(r'(href|src)="(?!["#]|\w+:|\d\d_\w+\.html)', rf'\1="{up}/', text)
    write_text(path, text.replace("</head>", STYLE + "</head>", 1))


def run_lesson(path, args):
    """Run one lesson and keep it; return its row of the index and its failure."""
    nb, start = nbformat.read(path, 4), time.perf_counter()
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    with tqdm(nb.cells, path.stem, leave=False, disable=None) as bar:
        failure = asyncio.run(execute(nb, path.parent, args.timeout, bar))
    seconds = time.perf_counter() - start
    store(nb)
    if args.refresh:
        result = failure or ("refreshed" if refresh(path, nb) else "unchanged")
    else:
        result = failure or "ok"
        args.out.mkdir(parents=True, exist_ok=True)
        write_text(args.out / path.name, nbformat.writes(nb) + "\n")
        write_page(args.out / f"{path.stem}.html", nb, path.parent)
    print(f"{path.stem:<28} {seconds:7.1f}  {result}", flush=True)
    return _row(path.stem, nb, seconds, result), failure


def _row(name, nb, seconds, result):
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    title = re.search(r"^# +(.+)", text, re.M) or [name, name]
    learn = re.search(r"You will learn\W*(.+)", text) or ["", ""]
    title, learn, result = (html.escape(s) for s in (title[1], learn[1], result))
    return (f'<tr><td><a href="{name}.html">{title}</a><small>{learn}</small>'
            f"<td>{seconds:.1f}<td>{result}\n")


def main(argv=None):
    """Read the command line, run the lessons; return the exit status."""
    parser = argparse.ArgumentParser("course.py")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--lesson", help="its number, or ps1 (default: all)")
    parser.add_argument("--notebooks", type=Path, default="notebooks")
    parser.add_argument("--out", type=Path, default="build/course")
    parser.add_argument("--timeout", type=int, default=300, help="seconds a cell")
    args = parser.parse_args(argv)
    patterns = ["[0-9][0-9]_*.ipynb", "exercises/source/ps*/ps*.ipynb"]
    paths = [path for pattern in patterns[:1 + args.refresh]
             for path in sorted(args.notebooks.glob(pattern)) if args.lesson is None
             or path.stem.split("_")[0] == args.lesson.zfill(2)]
    if not paths:
        parser.error(f"no such lesson in {args.notebooks}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    print(f"{'lesson':<28} {'seconds':>7}  result", flush=True)
    try:
        rows, failures = zip(*[run_lesson(path, args) for path in paths])
    except KeyboardInterrupt:
        return 130
    if not args.refresh:
        write_text(args.out / "index.html", INDEX.format("".join(rows)))
        print(f"Open {args.out / 'index.html'}")
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main())
