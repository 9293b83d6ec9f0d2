"""Points for answers in words: a table that goes to a person and is read back.

    Words   the table: read, checked, put into a gradebook, and added to

A row is a text; its `version` says of which text, since a learner may hand in again.
Rows that a person has filled in are never changed, and a table that has all texts is
not written.
"""

import hashlib
import re
from pathlib import Path

from manual_dp.school.exercise import SETS, questions
from manual_dp.school.grader import sheet
from manual_dp.school.grader.gradebook import number

HEAD = ["student", "problem_set", "question", "points", "max", "comment", "text",
        "version"]
NEEDED = HEAD[:4]


class Words:
    """The table at `path`; empty if there is none yet.

    students: who there is. handed_in: pairs (folder, set). Raises ValueError, naming
    the line, for a row of a student, set or question that there is not, and for points
    that cannot be given.
    """

    def __init__(self, path, students, handed_in):
        self.path, self.rows = Path(path), {}  # (folder, set, question): rows
        there = self.path.exists() and not (
            self.path.is_file() and self.path.stat().st_size == 0)
        self.sheet = sheet.read(path, NEEDED) if there else sheet.Sheet(list(HEAD))
        seen = {}
        for line, row in self.sheet.rows:
            try:
                key = _check(row, students, handed_in)
                if _filled(row, "points"):
                    text = *key, row.get("version", "")
                    if text in seen:
                        raise ValueError("points for a text that has some in line "
                                         f"{seen[text]}")
                    seen[text] = line
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: {error}") from None
            self.rows.setdefault(key, []).append(row)

    def give(self, book):
        """Put points and comments into the texts of `book`."""
        for key, text in _texts(book):
            # what was given last for this very text, or for any, or for an older one
            rows = sorted(self.rows.get(key, []), key=lambda row: _fits(row, text))
            given = [row for row in rows if _filled(row, "points")]
            if given:
                text.points = _points(given[-1]["points"])
                text.changed = not _fits(given[-1], text)
            if rows:
                text.comment = (given or rows)[-1].get("comment", "").strip()

    def save(self, book):
        """Write the texts of `book` that the table lacks; return how many wait."""
        new = not self.path.exists()
        for key, text in _texts(book):
            rows = self.rows.get(key, [])
            if text.text and not any(_fits(row, text) for row in rows):
                self._add(key, text, book.students.names[key[0]])
                new = True
        if new:
            head = self.sheet.head
            head += [column for column in HEAD if column not in head]
            sheet.write(self.path, head, [row for _, row in self.sheet.rows],
                        self.sheet.delimiter)
        return sum(text.waits for _, text in _texts(book))

    def _add(self, key, text, student):
        """Add a row, or use that of an older text which nobody has read."""
        for row in self.rows.get(key, []):
            if not _filled(row, "points") and not _filled(row, "comment"):
                break
        else:
            row = dict(zip(HEAD, [student, *key[1:], "", number(text.most)]))
            self.sheet.rows.append((0, row))
        row |= {"text": sheet.plain(text.text), "version": _version(text)}


def _check(row, students, handed_in):
    """Return (folder, set, question) of a row; raise ValueError for its first fault."""
    folder = students.find(row["student"])
    name, question = row["problem_set"].strip(), row["question"].strip()
    if name not in SETS:
        raise ValueError(f"no problem set is called {name[:60]!r}")
    if (folder, name) not in handed_in:
        raise ValueError(f"{students.names[folder]!r} has handed in no {name}")
    most = questions(name).get(question)
    if most is None:
        raise ValueError(f"no question of {name} is called {question[:60]!r}; there is "
                         f"{', '.join(questions(name)) or 'none'}")
    if _filled(row, "points") and _points(row["points"]) > most:
        raise ValueError(f"{row['points'].strip()[:20]} points, and {name}/{question} "
                         f"has {number(most)}")
    return folder, name, question


def _points(text):
    text = text.strip()
    if not re.fullmatch(r"[0-9]+([.,][0-9]+)?", text):
        raise ValueError(f"points are a number >= 0, not {text[:20]!r}")
    return float(text.replace(",", "."))


def _filled(row, column):
    return bool(row.get(column, "").strip())


def _fits(row, text):
    """Return 0 if a row is of another text, 1 if it does not say, 2 if of this."""
    version = row.get("version", "").strip()
    return 2 if version == _version(text) else int(not version)


def _version(text):
    digest = hashlib.sha256(text.text.encode(errors="surrogatepass")).hexdigest()
    return "t" + digest[:8]  # a letter first: a spreadsheet takes 1234e567 for a number


def _texts(book):
    for name in book.sets:  # whoever reads, reads one question after the other
        for question in questions(name):
            for folder, works in book.works.items():
                if name in works:
                    yield (folder, name, question), works[name].texts[question]
