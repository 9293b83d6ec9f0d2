"""The command `python -m manual_dp grade`: what it takes, and what it prints."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from manual_dp.school.exercise import so_many
from manual_dp.school.grader.gradebook import Gradebook, maximum, write_csv
from manual_dp.school.grader.journal import remembered
from manual_dp.school.grader.students import Students
from manual_dp.school.grader.submission import identify
from manual_dp.school.grader.words import Words

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
    'python -m manual_dp grade /submitted/*/ps*/ps*.ipynb --csv /grades/grades.csv'

One gradebook holds all sets: a row a student, a column a set. Say the same --csv for
each set; what was graded before stays. An interrupted run goes on where it was: say the
same command again. What is done is remembered in CSV.journal; a notebook that has
changed is graded anew.

Answers in words wait for a person. --words writes them into a table: fill in its column
`points`, and `comment` if you like, and say the same command again.
"""


def add_parser(commands, count, file):
    """Add `grade` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "grade", help="grade notebooks that were handed in", description=HELP,
        epilog=LIMITS, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK",
                        help="such as submitted/*/ps*/ps*.ipynb")
    parser.add_argument("--csv", type=file, metavar="FILE",
                        help="write a row for each student here")
    parser.add_argument("--html", type=Path, metavar="DIR",
                        help="write a page for each student here, and index.html")
    parser.add_argument("--words", type=file, metavar="FILE",
                        help="answers in words, and the points that you give them")
    parser.add_argument("--jobs", type=count, default=min(os.cpu_count() or 1, 4),
                        metavar="N", help="answers at a time (default: %(default)s)")
    parser.set_defaults(command=grade_command)


def grade_command(args):
    """Grade; print a line for each notebook, write the tables and the pages."""
    from manual_dp.school.grader import jail, landlock
    from manual_dp.school.grader.feedback import write_pages
    from manual_dp.school.grader.grade import grade_all
    if args.words and not args.csv:
        raise ValueError("--words needs --csv: there the points go")
    for path in args.notebooks:
        if not os.path.lexists(path):  # a shell hands on a pattern that fits nothing
            raise FileNotFoundError(f"no such notebook: {path}")
    if not jail.available():
        print("Note: this system has no namespaces, so the answers can see your other "
              "processes. They run one at a time. Grade in a container (--help).",
              file=sys.stderr)
    if not landlock.available():
        print("Note: this system has no Landlock, so the answers can read your files, "
              "the course among them. Grade in a container (--help).", file=sys.stderr)
    if args.html:  # before the work
        args.html.mkdir(parents=True, exist_ok=True)
    journal = _journal(args)
    words = args.words and _read_words(args, remembered(journal))
    records, new = grade_all(args.notebooks, journal, args.jobs)
    book = Gradebook(remembered(journal) if journal else records)
    if words:
        words.give(book)
    print("\n".join(_lines(records, book)))
    print(f"{len(records)} notebooks, {len(records) - new} of them graded before")
    if words:
        print(f"{so_many(words.save(book), 'text')} to read in {args.words}")
    if args.csv:
        write_csv(args.csv, book)
        print(f"wrote {args.csv}")
    if args.html:
        print(f"wrote {write_pages(args.html, book)}")


def _journal(args):
    path = args.csv or args.html
    return path and path.absolute().with_name(path.absolute().name + ".journal")


def _read_words(args, records):
    """Return the table of words, checked before a long run and not after it."""
    handed_in = set()
    for path in [*args.notebooks, *(record["file"] for record in records)]:
        with suppress(ValueError):  # of no set: nothing in the table can be about it
            handed_in.add(identify(path))
    return Words(args.words, Students(folder for folder, _ in handed_in), handed_in)


def _lines(records, book):
    works = {os.path.abspath(work.record["file"]): work
             for works in book.works.values() for work in works.values()}
    rows = []
    for record in records:
        work = works.get(os.path.abspath(record["file"]))
        points = work.points if work else record["score"]
        most = maximum(record["problem_set"]) if record["problem_set"] else 0
        name = _word(record["student"] or os.path.relpath(record["file"])[-60:])
        rows.append((name, record["problem_set"] or "?", str(points), most,
                     _remark(record, work)))
    width = max([7, *(len(name) for name, *_ in rows)])
    yield f"{'student':<{width}}  set  points     to do again"
    for name, problem_set, points, most, remark in rows:
        yield (f"{name:<{width}}  {problem_set:<3}  {points:>4} / {most:<2}  "
               f"{remark}").rstrip()


def _remark(record, work):
    if record["note"]:
        return f"NOT GRADED: {_word(record['note'])}"
    if work is None and record["problem_set"]:
        return "NOT COUNTED: another notebook is called as the set"
    again = [exercise.partition("/")[2] for exercise, (_, message)
             in record["exercises"].items() if message]
    waiting = [so_many(work.to_read, "text") + " to read"] if work.to_read else []
    return "; ".join([", ".join(again)] * bool(again) + waiting)


def _word(text):
    """Return a stranger's text as one line that a terminal only shows."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:60])
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding)
