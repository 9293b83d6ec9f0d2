"""Sealed files: bytes under a line that says how many they are, and their SHA-256."""

import errno
import hashlib
import os
import re
import threading
from contextlib import suppress


def seal(path, magic, data):
    """Write `data` to the file `path`, under `magic`; return when the disk has it.

    Killed at any instant it leaves the old file or the new (Pillai et al. 2014), and
    perhaps a `.ck-*` beside it, which the next call removes. Raises OSError, and says
    so if the disk is full; the old file is then as it was.
    """
    _sweep(path)
    # the thread too: two of them may save at once
    temp = path.with_name(f".ck-{path.name}-{os.getpid()}-{threading.get_native_id()}")
    try:
        with open(temp, "wb") as file:
            file.write(f"{magic} {len(data)} {_sha256(data)}\n".encode())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or the new name may reach the disk first
        os.replace(temp, path)
        if hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
            folder = os.open(path.parent, os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.strerror += f": the disk may be full; {path} is as it was"
        raise
    finally:
        temp.unlink(missing_ok=True)


def unseal(path, magic):
    """Return the bytes under the first line of the file `path`, and their SHA-256.

    Raises ValueError, naming the file, if it is empty, cut short, damaged or another
    program's.
    """
    with open(path, "rb") as file:
        head, data = file.readline(200), file.read()
    match = re.fullmatch(magic + r" (\d+) ([0-9a-f]{64})\n", head.decode("latin-1"))
    if not head:
        reason = "is empty"
    elif not match:
        reason = (f"does not begin as a checkpoint of ours does, {magic!r}; for a file "
                  "of torch.save, use torch.load(path, weights_only=True)")
    elif len(data) != int(match[1]):
        reason = f"should have {match[1]} bytes after its first line, has {len(data)}"
    elif _sha256(data) != match[2]:
        reason = "is damaged: its bytes are not those that were written (SHA-256)"
    else:
        return data, match[2]
    raise ValueError(f"{path} {reason}")


def _sweep(path):
    """Remove what killed calls for `path` left, not what another is writing."""
    if not hasattr(os, "fork"):
        return  # Windows: os.kill(pid, 0) would interrupt the process there
    for other in path.parent.glob(".ck-*"):
        name = re.fullmatch(r"\.ck-(.*)-(\d{1,9})-\d+", other.name)
        with suppress(PermissionError):  # another user's
            try:
                if name and name[1] == path.name:
                    os.kill(int(name[2]), 0)  # no signal: is there such a process?
            except ProcessLookupError:
                other.unlink(missing_ok=True)


def _sha256(data):
    return hashlib.sha256(data).hexdigest()
