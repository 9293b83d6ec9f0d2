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
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import book
import links
import nbformat
import settings
from forks import Job, run_all
from stored import cleared, code_cells, differences, measures, refresh, tidy
from tqdm import tqdm

ROW = "{:<28} {:7.1f}  {}"
SHOWN = 300  # characters of what a cell says


def run_notebooks(paths, args):
    """Yield each notebook as it is stored, and its run.

    So many at once as there are cores; but where outputs of a clock are kept, those
    that have a clock one after another.
    """
    notebooks = {path: nbformat.read(path, 4) for path in paths}
    alone = [path for path, nb in notebooks.items() if args.what == "refresh" or
             args.what == "course" and any(map(measures, code_cells(nb)))]
    done = {}
    with tqdm(total=sum(len(code_cells(nb)) for nb in notebooks.values()),
              leave=False, disable=None) as bar:
        def heard(path, count):
            done[path] = count
            bar.set_description(path.stem, refresh=False)
            bar.update(sum(done.values()) - bar.n)
        for some, at_once in (([path for path in paths if path not in alone],
                               os.cpu_count() or 1), (alone, 1)):
            jobs = [Job(path, cleared(notebooks[path]), path.parent) for path in some]
            for run in run_all(jobs, at_once, args.timeout, heard):
                yield notebooks[run.job.path], run


def course(args):
    """Run lessons, make the book; return whether all went well."""
    runs = []
    for _, run in run_notebooks(args.paths, args):
        tidy(run.nb)
        say(run.job.path.stem, run.seconds, run.failure or "ok")
        runs.append(run)
    start = time.perf_counter()
    with tqdm(total=100, desc="the book", leave=False, disable=None) as bar:
        try:
            pages, warnings = book.build(
                args.notebooks, args.out, runs,
                lambda share: bar.update(round(100 * share) - bar.n))
        except book.BookError as error:
            pages, warnings = 0, [str(error)]
    say("the book", time.perf_counter() - start, f"{pages} pages" if pages else "FAILED")
    print(*warnings, sep="\n", end="\n" * bool(warnings))
    if pages:
        print(f"Open {args.out / 'index.html'}")
    return bool(pages) and not any(run.failure for run in runs)


def check(args):
    """Say which cells differ from what is stored; return whether none does."""
    well = True
    for nb, run in run_notebooks(args.paths, args):
        found = {} if run.failure else differences(nb, run.nb)
        say(run.job.path.stem, run.seconds, run.failure or (
            f"DIFFERS in {', '.join(found)}" if found else "as stored"))
        for name, said in found.items():
            start = max(0, len(os.path.commonprefix(said)) - SHOWN // 3)
            for when, text in zip(("stored", "now"), said):
                print(f"--- {name}, {when}:\n{text[start:start + SHOWN]}")
        well = well and not run.failure and not found
    return well


def store(args):
    """Write links' numbers and the outputs into the notebooks; return whether all ran."""
    links.mend(args.notebooks.resolve())
    well = True
    for _, run in run_notebooks(args.paths, args):
        done = run.failure or ("refreshed" if refresh(run.job.path, run.nb) else "unchanged")
        say(run.job.path.stem, run.seconds, done)
        well = well and not run.failure
    return well


def vary(args):
    """Run lessons at their settings' extremes; return whether every check holds.

    They run in copies of their folder, so whatever their cells write is gone afterwards.
    """
    asked, well = [], True
    for path in args.paths:
        nb = nbformat.read(path, 4)
        asked += [(path, nb, values) for values in settings.plan(settings.read(path, nb))]
    with tempfile.TemporaryDirectory(prefix="settings-") as place:
        def jobs():
            for number, (path, nb, values) in enumerate(asked):
                folder = Path(place, str(number), "notebooks")
                shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns(
                    ".*", "__pycache__", "exercises"))
                yield Job(path, settings.changed(cleared(nb), values), folder)
        for run in tqdm(run_all(jobs(), os.cpu_count() or 1, args.timeout),
                        total=len(asked), leave=False, disable=None):
            _, nb, values = asked[int(run.job.folder.parent.name)]
            failure = run.failure or settings.broken(nb, run.nb)
            said = ", ".join(f"{name}={value!r}" for name, value in values.items())
            say(run.job.path.stem, run.seconds, f"{failure or 'ok'}  {said}")
            shutil.rmtree(run.job.folder)
            well = well and not failure
    return well


def say(name, seconds, what):
    """Print a row of the table."""
    tqdm.write(ROW.format(name, seconds, what))
    sys.stdout.flush()


WHAT = {"course": course, "check": check, "refresh": store, "settings": vary}


def arguments(argv):
    """Read the command line; return it with the notebooks' `paths`."""
    parser = argparse.ArgumentParser("lessons.py")
    parser.add_argument("what", choices=WHAT, nargs="?", default="course")
    parser.add_argument("--lesson", nargs="+", help="numbers or names (default: all)")
    parser.add_argument("--notebooks", type=Path, default="notebooks")
    parser.add_argument("--out", type=Path, default="build/course")
    parser.add_argument("--timeout", type=int, default=900, help="seconds a notebook")
    args = parser.parse_args(argv)
    sets = args.what in ("check", "refresh")
    patterns = ["[0-9][0-9]_*.ipynb", "exercises/source/ps*/ps*.ipynb"][:1 + sets]
    args.paths = [path for pattern in patterns
                  for path in sorted(args.notebooks.resolve().glob(pattern))]
    if args.lesson:
        args.paths = [path for path in args.paths
                      if {name.zfill(2) for name in args.lesson} & {*path.stem.split("_", 1)}]
    if len(args.paths) < len(args.lesson or [1]):
        parser.error(f"no such lesson in {args.notebooks}")
    return args


def main(argv=None):
    """Do what the command line asks for; return the exit status."""
    args = arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    print(f"{'lesson':<28} {'seconds':>7}  result", flush=True)
    try:
        return int(not WHAT[args.what](args))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
