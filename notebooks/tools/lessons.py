"""Run lessons from top to bottom; make the book, compare, store, or vary settings.

    python notebooks/tools/lessons.py   run every lesson, make the book in build/course
    ... check                           name the cells of lessons and problem sets whose
                                        outputs differ from the stored ones
    ... refresh                         store their outputs of now, and let nbgrader make
                                        what learners get of the sets, if one is among them;
                                        name the texts that quote a number which is gone
    ... refresh --redraw                also charts in pixels, where no text changed
    ... settings                        run lessons at the extremes of their settings
    ... find "three words"              run nothing; name the cells that say or store these
                                        words, over line breaks and in pictures, too
    ... --lesson 03 one_step ps1        do this for these alone

After a cell that fails, the rest of its lesson is left out and the next lesson runs. The
book has all lessons: one that was not run just now comes with its stored outputs.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import links
import nbformat
import release
import settings
from forks import run_all
from stored import (
    LESSONS,
    NOTEBOOKS,
    SETS,
    cleared,
    code_cells,
    differences,
    find_files,
    measures,
    outdated,
    outputs_as_text,
    plain_text,
    redrawn,
    refresh,
)
from tqdm import tqdm

import book

SHOWN = 300  # characters of a cell's outputs, where these differ


def run_notebooks(args):
    """Yield each notebook as it is stored, its run, and how many are still to come.

    As many run at once as there are cores. But times are right only in a process that
    has the machine to itself: what may store times runs alone.
    """
    stored = {path: read(path) for path in args.paths}
    together, alone = [], []
    for path, nb in stored.items():
        if args.what == "settings":
            if not settings.has_any(nb):  # a page to look things up in
                continue
            for values in settings.plan(settings.read_settings(path, nb)):
                together.append((path, settings.with_values(nb, values)))
            continue
        timed = args.what == "course" and any(map(measures, nb.cells))
        jobs = alone if args.what == "refresh" or timed else together
        jobs.append((path, cleared(nb)))
    left = len(together + alone)
    cells = sum(len(code_cells(nb)) for _, nb in together + alone)
    with tqdm(total=cells, leave=False, disable=None) as bar:

        def on_cell(path):
            bar.set_description(path.stem, refresh=False)
            bar.update()

        for jobs, at_once in (together, os.cpu_count() or 1), (alone, 1):
            for run in run_all(jobs, at_once, args.timeout, on_cell):
                left -= 1
                yield stored[run.path], run, left


def read(path):
    """Read a notebook; an error names its file."""
    try:
        return nbformat.read(path, 4)
    except Exception as error:
        said = str(error).partition(": '")[0]
        raise ValueError(
            f"{path.name}: {said}. `make lint` names the line"
        ) from None


def number(path):
    """Return what `make` calls a lesson or set: 03, ps1."""
    return path.stem.split("_")[0]


def other_charts(nb, run):
    """Say which charts a notebook has that are drawn otherwise now; "" if none."""
    names = redrawn(nb, run.nb)
    if not names:
        return ""
    return (
        f"other pixels in the charts of {', '.join(names)}: "
        f"make refresh LESSON={number(run.path)} REDRAW=1 stores them"
    )


def compare(nb, run, args):
    """Name the cells whose outputs differ from the stored ones; show both outputs."""
    found = differences(nb, run.nb)
    if not found:
        other = other_charts(nb, run)
        return f"as stored, but now with {other}" if other else "as stored"
    lines = [f"DIFFERS in {', '.join(found)}"]
    if any(before == now for before, now in found.values()):
        lines.append(
            "The stored execution counts are not those of one run from top to bottom."
        )
    for name, (before, now) in found.items():
        if before == now:
            continue
        # begin a little before the first character that differs
        start = len(os.path.commonprefix([before, now])) - SHOWN // 3
        shown = slice(max(0, start), max(0, start) + SHOWN)
        lines.append(f"--- {name}, stored:\n{before[shown]}")
        lines.append(f"--- {name}, now:\n{now[shown]}")
    lines.append(
        f"If that is on purpose: make refresh LESSON={number(run.path)} "
        "stores what it says now."
    )
    return "\n".join(lines)


def store(nb, run, args):
    """Store a run; say whether the file changed, and which old charts it keeps.

    Also name the text cells to read again: they quote numbers that are gone.
    """
    changed = refresh(run.path, run.nb, args.redraw)
    now = nbformat.read(run.path, 4)
    result = "refreshed" if changed else "unchanged"
    other = other_charts(now, run)
    if other and changed:
        result = f"refreshed, but now with {other}"
    elif other:
        result = f"NOT STORED: it has {other}"
    lines = [
        f"read {name} again: it says {', '.join(numbers)}; no output does now"
        for name, numbers in outdated(nb, now).items()
    ]
    return "\n".join([result, *lines])


def find(words, paths):
    """Name the cells that have these words; return whether there are any."""
    words = plain_text(words)
    found, refreshed = False, []
    for path in paths:
        nb = read(path)
        places = [
            cell.id for cell in nb.cells if words in plain_text(cell.source)
        ]
        stored = [
            f"output of {cell.id}"
            for cell in code_cells(nb)
            if words in plain_text(outputs_as_text(cell))
        ]
        if places or stored:
            found = True
            print(f"{path.stem:<28} {', '.join(places + stored)}")
        if stored:
            refreshed.append(number(path))
    if refreshed:
        print(
            f'To store them anew: make refresh LESSON="{" ".join(refreshed)}"'
        )
    if not found:
        print("No lesson and no set has these words.")
    return found


# what to do with the stored notebook and its run; returns the words for the table
WHAT = {
    "course": lambda nb, run, args: "ok",
    "check": compare,
    "refresh": store,
    "settings": lambda nb, run, args: settings.broken(nb, run.nb) or "ok",
}


def do(args):
    """Run the notebooks and do what is asked for; return whether all went well."""
    runs, well, written = [], True, {*args.paths}
    if args.what == "refresh":
        import headings  # it imports torch, which nothing else here needs

        mended = links.mend(args.notebooks) + headings.mend(args.notebooks)
        written.update(mended)
        for path in dict.fromkeys(mended):
            name = path.relative_to(args.notebooks)
            print(f"{name}: numbers rewritten")
    for nb, run, left in run_notebooks(args):
        result = run.failure or WHAT[args.what](nb, run, args)
        well = well and not result.startswith(("FAILED", "DIFFERS"))
        if args.what == "settings":
            result += settings.as_line(run.nb)
        print_row(run.path.stem, run.seconds, left, result)
        runs.append(run)
    sets = find_files(args.notebooks, [SETS])
    if args.what == "refresh" and well and written.intersection(sets):
        well = release.release(args.notebooks / "exercises") == 0
    if args.what == "course":
        out = args.notebooks.parent / "build" / "course"
        start = time.perf_counter()
        warnings = book.build(args.notebooks, out, runs)
        seconds = time.perf_counter() - start
        print_row("the book", seconds, 0, "\n".join(["ok", *warnings]))
        print(f"Open {os.path.relpath(out)}/index.html")
    return well


def print_row(name, seconds, left, result):
    """Print a row of the table, above the bar that tqdm draws."""
    tqdm.write(f"{name:<28} {seconds:7.1f} {left:5}  {result}")
    sys.stdout.flush()


def arguments(argv):
    """Read the command line; return it with the notebooks' `paths`."""
    parser = argparse.ArgumentParser("lessons.py")
    parser.add_argument(
        "what", choices=[*WHAT, "find"], nargs="?", default="course"
    )
    parser.add_argument("words", nargs="?", help="find: what to look for")
    parser.add_argument(
        "--lesson", nargs="+", help="numbers or names (default: all)"
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="refresh: store charts anew, also where no text changed",
    )
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS)
    parser.add_argument(
        "--timeout", type=int, default=900, help="seconds a notebook"
    )
    args = parser.parse_args(argv)
    if (args.what == "find") != bool(args.words):
        parser.error(
            'words follow `find`, and nothing else: find "three words"'
        )
    patterns = [LESSONS]
    if args.what in ("check", "refresh", "find"):
        patterns = [SETS, LESSONS]
    args.paths = find_files(args.notebooks, patterns)
    if args.lesson:
        asked = {name.zfill(2) for name in args.lesson}
        args.paths = [
            path
            for path in args.paths
            if asked & {*path.stem.split("_", 1)}  # its number, its name
        ]
    known = {part for path in args.paths for part in path.stem.split("_", 1)}
    lost = [name for name in args.lesson or [] if name.zfill(2) not in known]
    if lost or not args.paths:
        parser.error(f"no such lesson in {args.notebooks}: {' '.join(lost)}")
    return args


def main(argv=None):
    """Do what the command line asks for; return the exit status."""
    args = arguments(argv)
    if args.what == "find":
        return int(not find(args.words, args.paths))
    # SIGTERM ends it as Ctrl-C does: the forks are ended, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"{'lesson':<28} {'seconds':>7} {'left':>5}  result", flush=True)
    try:
        return int(not do(args))
    except (ValueError, book.BookError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
