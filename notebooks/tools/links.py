"""Lessons are known by their names; their numbers are those of their files.

    mend   write the files' numbers into titles, links and the way onward

To renumber a lesson, move its file and say `make refresh`. A text names a lesson only
in a link, such as [lesson 3](03_allreduce.ipynb), so that its number can follow.
"""

import re

from stored import LESSONS, SETS, write_text

PAGES = [
    LESSONS,
    SETS,
    "glossary.md",
    "book/*.md",
    "book/*.yml",
    "clusters/*.md",
    "exercises/*.md",
    "../README.md",
]
TITLE = r"# \d+\. ([^\"\\\n]+)"
LAST = "Next: your own programs"  # of the last lesson: no link, until there is a next
LABEL = (
    r"\[([Ll]esson )?(\d+)(\.? [^\]\[]*)?(?=\]\([./a-z]*\d\d_(\w+)\.ipynb)"
)


def mend(notebooks):
    """Write the lessons' numbers wherever they are named; return the files that changed."""
    lessons = sorted(notebooks.glob(LESSONS))
    numbers = {path.stem[3:]: path.stem[:2] for path in lessons}
    titles = {
        path: re.search(TITLE, path.read_text(encoding="utf-8"))[1]
        for path in lessons
    }
    changed = []

    def label(found):
        lesson, old, title, name = (group or "" for group in found.groups())
        new = numbers.get(name, old)
        wide = re.match(r"0\d", old) or title.startswith(" ")
        return f"[{lesson}{new if wide else int(new)}{title}"

    def address(found):
        return f"{numbers.get(found[2], found[1])}_{found[2]}.ipynb"

    for path in (
        path for page in PAGES for path in sorted(notebooks.glob(page))
    ):
        before = path.read_text(encoding="utf-8")
        after = re.sub(LABEL, label, before)
        after = re.sub(r"\b(\d\d)_([a-z]\w*)\.ipynb", address, after)
        if path in titles:
            number, at = int(path.stem[:2]), lessons.index(path)
            if lessons[at + 1 :]:
                after = after.replace(LAST, "[Next: ]()")
            after = re.sub(
                TITLE, f"# {number}. {titles[path]}", after, count=1
            )
            for word, others in (
                ("Before", lessons[:at][-1:]),
                ("Next", lessons[at + 1 :][:1]),
            ):
                for lesson in others:
                    link = f"{int(lesson.stem[:2])}. {titles[lesson]}]({lesson.name})"
                    after = re.sub(
                        rf"\[{word}: [^\]]*\]\([^)]*\)",
                        f"[{word}: {link}",
                        after,
                    )
        if after != before:
            write_text(path, after)
            changed.append(path)
    return changed
