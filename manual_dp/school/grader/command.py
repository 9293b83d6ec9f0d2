"""The command `python -m manual_dp grade`: what it takes, and what it prints."""

import argparse
import os
import sys
from pathlib import Path

HELP = """\
Take the answers out of notebooks that were handed in, run them, compare numbers.

Where a notebook lies says whose it is: .../STUDENT/ps1/ps1.ipynb. Only its answer cells
are run, each exercise in a process of its own with limits on time, memory, files and
processes, which cannot read the course. Random inputs go in, numbers come back, and
this process decides; what the answers print, and how they end, means nothing.
"""
LIMITS = """\
This is not a sandbox: code that a stranger wrote runs as you, and could use the
network. If you do not trust it, grade in a container (IMAGE: one that has the course):

  docker run --rm --network none --read-only --tmpfs /tmp --user 65534 \\
    --memory 3g --pids-limit 256 --volume "$PWD/submitted:/submitted:ro" \\
    --volume "$PWD/grades:/grades" IMAGE sh -c \\
    'python -m manual_dp grade /submitted/*/ps1/*.ipynb --csv /grades/ps1.csv'

With --csv, an interrupted run goes on where it was: say the same command again. What is
done is remembered in CSV.journal; a notebook that has changed is graded anew.
"""


def add_parser(commands, count, file):
    """Add `grade` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "grade", help="grade notebooks that were handed in", description=HELP,
        epilog=LIMITS, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK",
                        help="such as submitted/*/ps1/*.ipynb")
    parser.add_argument("--csv", type=file, metavar="FILE",
                        help="write a row for each notebook here")
    parser.add_argument("--html", type=Path, metavar="DIR",
                        help="write a page for each learner here, and index.html")
    parser.add_argument("--jobs", type=count, default=min(os.cpu_count() or 1, 4),
                        metavar="N", help="answers at a time (default: %(default)s)")
    parser.set_defaults(command=grade_command)


def grade_command(args):
    """Grade; print a line for each notebook, write the table and the pages."""
    from manual_dp.school.grader import jail, landlock
    from manual_dp.school.grader.feedback import write_csv, write_pages
    from manual_dp.school.grader.grade import grade_all
    if not jail.available():
        print("Note: this system has no namespaces, so the answers can see your other "
              "processes. They run one at a time. Grade in a container (--help).",
              file=sys.stderr)
    if not landlock.available():
        print("Note: this system has no Landlock, so the answers can read your files, "
              "the course among them. Grade in a container (--help).", file=sys.stderr)
    if args.html:  # before the work
        args.html.mkdir(parents=True, exist_ok=True)
    journal = args.csv and args.csv.with_name(args.csv.name + ".journal")
    records, new = grade_all(args.notebooks, journal, args.jobs)
    print("\n".join(_lines(records)))
    print(f"{len(records)} notebooks, {len(records) - new} of them graded before")
    if args.csv:
        write_csv(args.csv, records)
        print(f"wrote {args.csv}")
    if args.html:
        print(f"wrote {write_pages(args.html, records)}")


def _lines(records):
    names = [_word(record["student"] or record["file"]) for record in records]
    width = max([7, *map(len, names)])
    yield f"{'student':<{width}}  set  points  to do again"
    for name, record in zip(names, records):
        again = [exercise.partition("/")[2] for exercise, (_, message)
                 in record["exercises"].items() if message]
        yield (f"{name:<{width}}  {record['problem_set'] or '?':<3}  "
               f"{record['score']:>2} / {record['max_score']:<2}  "
               f"{record['note'] and 'NOT GRADED: ' + _word(record['note'])}"
               f"{'' if record['note'] else ', '.join(again)}").rstrip()


def _word(text):
    """Return a stranger's text as one line that a terminal only shows."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:60])
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding)
