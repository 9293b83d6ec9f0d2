"""Write the numbers and points of exercises wherever a page names them.

    mend   write them into headings, titles, the table of sets, and all that names one

An exercise's points stand in its check (`@exercise(..., points=3)`), those of a text in
its cell. One with 0 points is left out of its set, and its heading says so. Its number
is its place in the set. A page names it by its function, or by its heading, such as
"2.5 (`tree_allreduce`)" or "2.7 (In words)": then its number can follow.
"""

import re

import nbformat
from stored import LESSONS, SETS, find_files, write_text

from course.school.checks import find

PAGES = [LESSONS, SETS, "book/*.md", "exercises/*.md"]
HEADING = r"## (\d+\.\d+) (.+?)( \((?:left out, )?[\d.]+ points?([^)]*)\))?$"
# "2.5 (`tree_allreduce`": a number, and a name; in the hints of a set, in HTML
NAMED = (
    r"\b(\d)\.\d+(?= \((?:`(\w+)`|<code>(\w+)</code>|([A-Z][^()]*?))[,);])"
)


def mend(notebooks):
    """Write the exercises' numbers and points; return the files that changed."""
    numbers, changed = {}, []
    for path in find_files(notebooks, [SETS]):
        before = path.read_text(encoding="utf-8")
        nb = nbformat.reads(before, 4)
        numbers.update(_number(nb, path.stem))
        _say_sums(nb)
        after = nbformat.writes(nb).rstrip("\n") + "\n"
        changed += _write(path, before, after)
        changed += _fill_row(
            notebooks / "exercises" / "README.md", path.stem, nb
        )

    def number(found):
        digit, code, html, heading = found.groups()
        key = digit, code or html or heading
        if key not in numbers and not heading:
            raise ValueError(
                f"{path.name} names {key[1]}, and ps{digit} has no such exercise"
            )
        return numbers.get(key, found[0])

    for path in find_files(notebooks, PAGES):
        before = path.read_text(encoding="utf-8")
        changed += _write(path, before, re.sub(NAMED, number, before))
    return changed


def _write(path, before, after):
    if after == before:
        return []
    write_text(path, after)
    return [path]


def _number(nb, name):
    """Write numbers into headings; return {(digit of the set, name): number}."""
    digit, numbers, count, heading = name[2:], {}, 0, None
    for cell in nb.cells:
        found = re.match(HEADING, cell.source.partition("\n")[0])
        if found and cell.cell_type == "markdown":
            count += 1
            heading, number = cell, f"{digit}.{count}"
            _, title, points, more = found.groups()
            numbers[digit, title] = number
            _head(cell, f"## {number} {title}{points or ''}")
        meta = cell.metadata.get("nbgrader", {})
        if not meta.get("grade"):
            continue
        if heading is None:
            raise ValueError(
                f"{name}: {meta.grade_id} has no heading of its own, such as "
                f"'## {digit}.1 Its title'"
            )
        form = r'check\("(\w+/(\w+))", ([\w, ]+)\)'
        check = re.match(form, cell.source)
        if check:
            meta.points = find(check[1]).points
            for function in [check[2], *check[3].split(", ")]:
                numbers[digit, function] = number
        worth = f"{meta.points:g} point{'s' * (meta.points != 1)}"
        if not meta.points:
            worth = f"left out, {worth}"
        _head(heading, f"## {number} {title} ({worth}{more or ''})")
        heading = None
    return numbers


def _head(cell, line):
    """Make a line the first of a cell."""
    _, end, rest = cell.source.partition("\n")
    cell.source = line + end + rest


def _points(nb, kind):
    """Return the points of all that is graded in code cells, or in texts."""
    metas = [
        c.metadata.get("nbgrader", {})
        for c in nb.cells
        if c.cell_type == kind
    ]
    return sum(meta.points for meta in metas if meta.get("grade"))


def _say_sums(nb):
    sums = f"{_points(nb, 'code'):g} points for code"
    if in_words := _points(nb, "markdown"):
        sums += f", {in_words:g} for words"
    title = nb.cells[0]
    title.source = re.sub(
        r"[\d.]+ points for code(, [\d.]+ for words)?", sums, title.source
    )


def _fill_row(readme, name, nb):
    """Write the sums into a set's row of the table of sets."""
    before = readme.read_text(encoding="utf-8")
    sums = f"{_points(nb, 'code'):g} | {_points(nb, 'markdown'):g} |"
    row = rf"(?m)^(\| \[{name}\]\(.*\| )[\d.]+ \| [\d.]+ \|$"
    return _write(readme, before, re.sub(row, rf"\g<1>{sums}", before))
