"""Lessons are known by their names; their numbers are those of their files.

    mend   write the files' numbers into titles, links and the way onward

To renumber a lesson, move its file and say `make refresh`. A text names a lesson only
in a link, such as [lesson 3](03_allreduce.ipynb), so that its number can follow.
"""

import re

from stored import write_text

PAGES = ["[0-9][0-9]_*.ipynb", "exercises/source/ps*/ps*.ipynb", "glossary.md",
         "book/*.md", "clusters/*.md", "exercises/*.md", "../README.md"]
TITLE = r"# \d+\. ([^\"\\\n]+)"


def mend(notebooks):
    """Write the lessons' numbers wherever they are named; return the files that changed."""
    lessons = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    numbers = {path.stem[3:]: path.stem[:2] for path in lessons}
    found = {path: re.search(TITLE, path.read_text(encoding="utf-8")) for path in lessons}
    titles = {path: title[1] for path, title in found.items() if title}
    way, changed = list(titles), []
    for path in (path for page in PAGES for path in sorted(notebooks.glob(page))):
        before = path.read_text(encoding="utf-8")
        after = _links(before, numbers)
        if path in titles:
            after = re.sub(TITLE, f"# {int(path.stem[:2])}. {titles[path]}", after, count=1)
            at = way.index(path)
            for word, other in (("Before", way[:at][-1:]), ("Next", way[at + 1:][:1])):
                for lesson in other:
                    link = f"{int(lesson.stem[:2])}. {titles[lesson]}]({lesson.name})"
                    after = re.sub(rf"\[{word}: [^\]]*\]\([^)]*\)", f"[{word}: {link}", after)
        if after != before:
            write_text(path, after)
            changed.append(path)
    return changed


def _links(text, numbers):
    """Give each link to a lesson the lesson's number, in its label and in its address."""
    def label(found):
        before, old, after, folder, name = found.groups()
        number = numbers.get(name)
        if number is None:
            return found[0]
        wide = len(old) == 2 and old[0] == "0" or after.startswith(" ")
        new = number if wide else str(int(number))
        return f"[{before}{new}{after}]({folder}{number}_{name}.ipynb"
    text = re.sub(r"\[((?:[Ll]esson )?)(\d+)((?:\.? [^\]\[]*)?)\]\(([./a-z]*)\d\d_(\w+)\.ipynb",
                  label, text)
    return re.sub(r"\b\d\d_([a-z]\w*)\.ipynb", lambda found: (
        f"{numbers[found[1]]}_{found[1]}.ipynb" if found[1] in numbers else found[0]), text)
