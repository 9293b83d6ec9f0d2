"""Folders in which answers write: one a job, gone with it, or swept up after a crash.

    folder   a new folder, as long as the block runs
    sweep    remove the folders of graders that were killed

A folder is locked as long as its process lives, so that another grader can tell which
of them nobody needs: it gets its name only when it is locked.
"""

import fcntl
import os
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from glob import escape, iglob

PREFIX = "manual_dp-grade-"


@contextmanager
def folder(place):
    """Yield a new folder in `place`; remove it afterwards, whatever is in it."""
    unnamed = tempfile.mkdtemp(prefix="manual_dp-new-", dir=place)
    lock = os.open(unnamed, os.O_RDONLY)
    path = unnamed.replace("manual_dp-new-", PREFIX)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(unnamed, path)
        yield path
    finally:
        _remove(path)
        os.close(lock)


def sweep(place):
    """Remove the folders in `place` that nobody holds any more."""
    for path in iglob(f"{escape(place)}/{PREFIX}*"):
        with suppress(OSError):  # another's, or no folder, or somebody holds it
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    _remove(path)
            finally:
                os.close(lock)


def _remove(path):
    # shutil stops at a thousand folders, one in the other, or where nobody may enter
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, path], stderr=subprocess.DEVNULL, check=False)
