"""Remember what has been graded, so that an interrupted run goes on where it was.

The journal has a line for each graded submission, and only grows. A line counts if it
is whole, if the submission has not changed, and if the checks have not.
"""

import fcntl
import functools
import hashlib
import json
import os
import tempfile

from manual_dp.school.grader.paths import PACKAGE
from manual_dp.school.grader.submission import LARGEST


class Journal:
    """Keep records in the file at `path`, or as long as this lives if that is None."""

    def __init__(self, path):
        self.checks = _checks()
        self.records = {}
        # what a submission was when it was first asked for: one that changes while it
        # is graded is graded anew the next time
        self.key = functools.cache(_key)
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
        for line in text.splitlines():
            try:
                record = json.loads(line)
                if record["checks"] == self.checks:
                    self.records[record["key"]] = record
            except (ValueError, TypeError, KeyError):
                pass  # cut off in the middle of a line
        if text and not text.endswith(b"\n"):
            self.file.write(b"\n")

    def find(self, path):
        """Return the record of the submission at `path`, or None."""
        return self.records.get(self.key(path))

    def add(self, path, record):
        """Keep `record`, on the disk before this returns."""
        record = {"key": self.key(path), "checks": self.checks, **record}
        self.records[record["key"]] = record
        self.file.write(json.dumps(record).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        """Let others write the file."""
        self.file.close()


def _key(path):
    digest = hashlib.sha256(os.path.abspath(path).encode(errors="surrogatepass"))
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                digest.update(file.read(LARGEST + 1))
    except OSError:
        pass
    return digest.hexdigest()


def _checks():
    """Return a digest of the course's files: a truth may come from any of them."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
