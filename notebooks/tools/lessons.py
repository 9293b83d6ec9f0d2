"""Run lessons from top to bottom; make the book, compare, store, or vary settings.

    python notebooks/tools/lessons.py             run every lesson, book in build/course
    ... check       say which cells of lessons and problem sets differ from what is stored
    ... refresh     store what they say now
    ... settings    run lessons at the extremes of their settings
    ... --lesson 03 one_step ps1                  these alone

After a cell that fails, the rest of its lesson is left out and the next lesson runs. A
book has all lessons: those that were not run just now, with the outputs that are stored.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import links
import nbformat
import settings
from forks import run_all
from stored import (
    LESSONS,
    NOTEBOOKS,
    SETS,
    cleared,
    code_cells,
    differences,
    measures,
    refresh,
)
from tqdm import tqdm

import book

SHOWN = 300  # characters of what a cell says


def run_notebooks(args):
    """Yield each notebook as it is stored, and its run.

    So many at once as there are cores; but where outputs of a clock are kept, those
    that have a clock one after another.
    """
    stored = {path: nbformat.read(path, 4) for path in args.paths}
    together, alone = [], []
    for path, nb in stored.items():
        if args.what == "settings":
            together += [
                (path, settings.changed(nb, values))
                for values in settings.plan(settings.read(path, nb))
            ]
        elif (
            args.what == "refresh"
            or args.what == "course"
            and any(map(measures, nb.cells))
        ):
            alone.append((path, cleared(nb)))
        else:
            together.append((path, cleared(nb)))
    with tqdm(
        total=sum(len(code_cells(nb)) for _, nb in together + alone),
        leave=False,
        disable=None,
    ) as bar:

        def heard(path):
            bar.set_description(path.stem, refresh=False)
            bar.update()

        for jobs, at_once in (together, os.cpu_count() or 1), (alone, 1):
            for run in run_all(jobs, at_once, args.timeout, heard):
                yield stored[run.path], run


def compare(nb, run):
    """Say which cells differ from what is stored, and what they say."""
    found = differences(nb, run.nb)
    lines = [f"DIFFERS in {', '.join(found)}"] if found else ["as stored"]
    for name, said in found.items():
        start = max(0, len(os.path.commonprefix(said)) - SHOWN // 3)
        lines += [
            f"--- {name}, {when}:\n{text[start : start + SHOWN]}"
            for when, text in zip(("stored", "now"), said)
        ]
    return "\n".join(lines)


WHAT = {
    "course": lambda nb, run: "ok",
    "check": compare,
    "refresh": lambda nb, run: (
        "refreshed" if refresh(run.path, run.nb) else "unchanged"
    ),
    "settings": lambda nb, run: settings.broken(nb, run.nb) or "ok",
}


def do(args):
    """Do what is asked for; return whether all went well."""
    runs, well = [], True
    if args.what == "refresh":
        links.mend(args.notebooks)
    for nb, run in run_notebooks(args):
        result = run.failure or WHAT[args.what](nb, run)
        well = well and not result.startswith(("FAILED", "DIFFERS"))
        say(
            run.path.stem,
            run.seconds,
            result
            + (settings.said(run.nb) if args.what == "settings" else ""),
        )
        runs.append(run)
    if args.what == "course":
        start, out = (
            time.perf_counter(),
            args.notebooks.parent / "build" / "course",
        )
        warnings = book.build(args.notebooks, out, runs)
        say(
            "the book",
            time.perf_counter() - start,
            "\n".join(["ok", *warnings]),
        )
        print(f"Open {os.path.relpath(out)}/index.html")
    return well


def say(name, seconds, what):
    """Print a row of the table."""
    tqdm.write(f"{name:<28} {seconds:7.1f}  {what}")
    sys.stdout.flush()


def arguments(argv):
    """Read the command line; return it with the notebooks' `paths`."""
    parser = argparse.ArgumentParser("lessons.py")
    parser.add_argument("what", choices=WHAT, nargs="?", default="course")
    parser.add_argument(
        "--lesson", nargs="+", help="numbers or names (default: all)"
    )
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS)
    parser.add_argument(
        "--timeout", type=int, default=900, help="seconds a notebook"
    )
    args = parser.parse_args(argv)
    patterns = (
        [SETS, LESSONS] if args.what in ("check", "refresh") else [LESSONS]
    )
    args.paths = [
        path
        for pattern in patterns
        for path in sorted(args.notebooks.glob(pattern))
    ]
    if args.lesson:
        args.paths = [
            path
            for path in args.paths
            if {name.zfill(2) for name in args.lesson}
            & {*path.stem.split("_", 1)}
        ]
    if len(args.paths) < len(args.lesson or [1]):
        parser.error(f"no such lesson in {args.notebooks}")
    return args


def main(argv=None):
    """Do what the command line asks for; return the exit status."""
    args = arguments(argv)
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # it ends as Ctrl-C does
    print(f"{'lesson':<28} {'seconds':>7}  result", flush=True)
    try:
        return int(not do(args))
    except (ValueError, book.BookError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
