"""Remember what has been graded, so that an interrupted run goes on where it was.

The journal has a line for each graded submission, and only grows. A line counts if it
is whole, if the submission has not changed, and if the checks have not. A gradebook is
made of the last line of each file, also of one that this run was not asked for.

A file is named as seen from the journal's folder: both may be moved together.
"""

import functools
import hashlib
import json
import os
import tempfile

from manual_dp.school.grader.paths import PACKAGE
from manual_dp.school.grader.submission import LARGEST

# of a record, what a gradebook shows
KEPT = {"student", "problem_set", "score", "max_score", "exercises", "words", "code",
        "edited", "note"}


class Journal:
    """Keep records in the file at `path`, or as long as this lives if that is None."""

    def __init__(self, path):
        self.checks = _checks()
        self.records, self.last = {}, {}
        self.folder = os.path.dirname(os.path.abspath(path)) if path else os.getcwd()
        # what a submission was when it was first asked for: one that changes while it
        # is graded is graded anew the next time
        self.key = functools.cache(self._key)
        import fcntl  # Windows has none, and needs the other commands
        self.file = open(path, "a+b") if path else tempfile.TemporaryFile()
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise RuntimeError(f"another grader is writing {path}") from None
        self._read()

    def _read(self):
        self.file.seek(0)
        text = self.file.read()
        for record in _records(text):
            self._keep(record)
        if text and not text.endswith(b"\n"):  # cut off in the middle of a line
            self.file.write(b"\n")

    def _keep(self, record):
        if record["checks"] == self.checks:
            self.records[record["key"]] = record
        self.last[record["file"]] = record

    def find(self, path):
        """Return the record of the submission at `path`, or None."""
        return self.records.get(self.key(path))

    def recall(self, path):
        """Return the same, and see that it is the last line of this file."""
        record = self.find(path)
        if record is not None and self.last[record["file"]] is not record:
            self.add(path, record)  # what was handed in is an older version again
        return record

    def add(self, path, record):
        """Keep `record`, on the disk before this returns."""
        record = {**record, "key": self.key(path), "checks": self.checks,
                  "file": self._name(path)}
        self._keep(record)
        self.file.write(json.dumps(record).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        """Let others write the file."""
        self.file.close()

    def _name(self, path):
        return os.path.relpath(os.path.abspath(path), self.folder)

    def _key(self, path):
        digest = hashlib.sha256(self._name(path).encode(errors="surrogatepass"))
        try:
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    digest.update(file.read(LARGEST + 1))
        except OSError:
            pass
        return digest.hexdigest()


def remembered(path):
    """Return the last record of each file that the journal at `path` knows.

    A record's "file" is a whole path here. There are none if there is no journal.
    """
    try:
        with open(path, "rb") as file:
            last = {record["file"]: record for record in _records(file.read())
                    if record.keys() >= KEPT}
    except FileNotFoundError:
        return []
    folder = os.path.dirname(os.path.abspath(path))
    return [{**record, "file": os.path.normpath(os.path.join(folder, name))}
            for name, record in last.items()]


def _records(text):
    for line in text.splitlines():
        try:
            record = json.loads(line)
            if all(isinstance(record[name], str) for name in ("key", "checks", "file")):
                yield record
        except (ValueError, TypeError, KeyError):
            pass  # cut off in the middle, or another program's


def _checks():
    """Return a digest of the course's files: a truth may come from any of them."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
