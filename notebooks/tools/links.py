"""Write the lessons' numbers, which are those of their files, wherever they are named.

    mend   write them into titles, links, and the links to the lesson before and after

To renumber a lesson, move its file and say `make refresh`. A text names a lesson only
in a link, such as [lesson 3](03_allreduce.ipynb), so that its number can follow.
"""

import re

from stored import LESSONS, SETS, find_files, write_text

PAGES = [
    LESSONS,
    SETS,
    "glossary.md",
    "claims.md",
    "book/*.md",
    "book/*.yml",
    "clusters/*.md",
    "exercises/*.md",
    "../README.md",
]
TITLE = r"# \d+\. ([^\"\\\n]+)"
# what stands in the last lesson in place of a link to the next one
LAST = "Next: your own programs"
# "[lesson 3. The sum" before "](03_sum.ipynb": "lesson ", number, title, file's name
LABEL = (
    r"\[([Ll]esson )?(\d+)(\.? [^\]\[]*)?(?=\]\([./a-z]*\d\d_(\w+)\.ipynb)"
)


def mend(notebooks):
    """Write the lessons' numbers into all pages; return the files that changed."""
    lessons = sorted(notebooks.glob(LESSONS))
    number_of = {path.stem[3:]: path.stem[:2] for path in lessons}
    titles = {
        path: re.search(TITLE, path.read_text(encoding="utf-8"))[1]
        for path in lessons
    }
    changed = []

    def label(found):
        lesson, old, title, name = (group or "" for group in found.groups())
        new = number_of.get(name, old)
        # "03" and "03 The sum" keep two digits; "lesson 3" and "3. The sum" have one
        two_digits = re.match(r"0\d", old) or title.startswith(" ")
        return f"[{lesson}{new if two_digits else int(new)}{title}"

    def address(found):
        return f"{number_of.get(found[2], found[1])}_{found[2]}.ipynb"

    def titled(lesson):
        return f"{int(lesson.stem[:2])}. {titles[lesson]}"

    def with_link(text, word, lesson):
        """Let the link that begins with `word` lead to a lesson."""
        link = f"[{word}: {titled(lesson)}]({lesson.name})"
        return re.sub(rf"\[{word}: [^\]]*\]\([^)]*\)", link, text)

    for path in find_files(notebooks, PAGES):
        before = path.read_text(encoding="utf-8")
        after = re.sub(LABEL, label, before)
        after = re.sub(r"\b(\d\d)_([a-z]\w*)\.ipynb", address, after)
        if path in titles:
            at = lessons.index(path)
            after = re.sub(TITLE, f"# {titled(path)}", after, count=1)
            if at > 0:
                after = with_link(after, "Before", lessons[at - 1])
            if at + 1 < len(lessons):
                after = after.replace(LAST, "[Next: ]()")
                after = with_link(after, "Next", lessons[at + 1])
        if after != before:
            write_text(path, after)
            changed.append(path)
    return changed
