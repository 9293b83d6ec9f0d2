"""Write feedback as pages: one for each student, one for the instructor over all.

    write_pages  STUDENT.html with what each set gave and why; index.html

Names, messages and code come from strangers: here they are text and nothing else.
"""

import hashlib
import re
from functools import partial
from pathlib import Path

from jinja2 import DictLoader, Environment

from manual_dp.files import write_text
from manual_dp.school.exercise import exercises, so_many
from manual_dp.school.grader import pages
from manual_dp.school.grader.gradebook import maximum, number
from manual_dp.school.grader.mistakes import troubles
from manual_dp.school.grader.sheet import printable
from manual_dp.school.grader.titles import titles

MARK = re.compile(rb'<meta name="student" content="([0-9a-f]{16})">')


def write_pages(folder, book):
    """Write a page for each student and `index.html`; return the path of that."""
    html = _environment()
    folder, written = Path(folder), {"index.html": None}
    folder.mkdir(parents=True, exist_ok=True)
    for home, works in book.works.items():
        page = _place(book.students.names[home], written)
        written[page] = home
        write_text(folder / page, html.get_template("student").render(
            title=book.students.names[home], works=works, mark=_mark(home)))
    del written["index.html"]
    _clear(folder, written)
    to_read = sum(work.to_read for works in book.works.values()
                  for work in works.values())
    write_text(folder / "index.html", html.get_template("class").render(
        title="Grades", pages=written, book=book, names=book.students.names,
        sets=book.sets, troubles=troubles(book), to_read=to_read))
    return folder / "index.html"


def _clear(folder, written):
    """Remove pages that a student of the book had under another name."""
    marks, now = {_mark(home) for home in written.values()}, {*map(str.lower, written)}
    for path in folder.glob("*.html"):
        if path.is_file() and path.name.lower() not in now | {"index.html"}:
            with open(path, "rb") as file:
                found = MARK.search(file.read(1000))
            if found and found[1].decode() in marks:
                path.unlink()


def _mark(home):
    """Return what a student's page is known by, whatever its name."""
    return _digest(str(home))[:16]


def _environment():
    html = Environment(
        loader=DictLoader({"page": pages.PAGE, "student": pages.STUDENT,
                           "class": pages.CLASS}),
        autoescape=True, trim_blocks=True,
        finalize=lambda value: printable(str(value)))
    html.filters.update(number=number, maximum=maximum)
    html.globals.update(maximum=maximum, most=_most, many=so_many, file=_file,
                        heading=partial(_about, 0), task=partial(_about, 1))
    return html


def _most(exercise):
    """Return the points of an exercise, or ? if there is none of this name any more."""
    found = exercises(exercise.partition("/")[0]).get(exercise)
    return found.points if found else "?"


def _about(which, name):
    """Return the title, or the task, of an exercise or a question; or nothing."""
    found = titles(name.partition("/")[0]).get(name, ("", ""))
    return found[which]


def _file(work=None, record=None):
    if record:  # nobody's: its folder may tell whose it is
        return "/".join(Path(record["file"]).parts[-2:])
    return Path(work.record["file"]).name


def _place(name, taken):
    """Return the name of a page that leads nowhere else and is nobody else's."""
    place, plain = name, _safe(name)
    taken = {page.lower() for page in taken}  # on some disks Anna is anna
    while f"{plain}.html".lower() in taken:
        place += "'"
        plain = f"{_safe(name)}-{_digest(place)[:8]}"
    return f"{plain}.html"


def _safe(name):
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80] or "_"
    return plain if plain == name else f"{plain}-{_digest(name)[:6]}"


def _digest(text):
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
