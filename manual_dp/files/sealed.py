"""Files that are whole whenever their writer is killed, and whose damage is noticed.

replacing     write a new file beside the old one; when it is whole, replace the old
seal, unseal  write and read bytes under a line with their number and SHA-256
"""

import errno
import functools
import hashlib
import os
import re
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path):
    """Open a file to write; when the block ends, put it in the place of `path`.

    The new file gets the old one's mode. If `path` is a symlink, the file that it leads
    to is replaced; a device or a pipe is written to directly. If the block raises, the
    old file stays. A process that is killed leaves a `.ck-*` beside it, which the next
    call on the same host removes. Another host cannot: it does not see whether the
    process that writes there is still alive.
    """
    # a device or a pipe; and a folder, for which open raises
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    _sweep(path)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mode = None
    # the thread's number, too: two threads may write the same file at once
    temp = path.with_name(f"{_mark(path)}{os.getpid()}-{threading.get_native_id()}")
    opener = functools.partial(os.open, mode=0o666 if mode is None else mode)
    try:
        with open(temp, "wb", opener=opener) as file:
            yield file
        if mode is not None:
            os.chmod(temp, mode)  # open leaves out what the umask forbids
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)


def seal(path, magic, data):
    """Write `data` to the file `path`, under `magic`; return when the disk has it.

    Killed at any instant it leaves the old file or the new (Pillai et al. 2014).
    Raises OSError, and says so if the disk is full; the old file is then as it was.
    """
    try:
        with replacing(path) as file:
            file.write(f"{magic} {len(data)} {_sha256(data)}\n".encode())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or the new name may reach the disk first
        if hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
            folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.strerror += f": the disk may be full; {path} is as it was"
        raise


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
        reason = (
            f"does not begin as a checkpoint of ours does, {magic!r}; for a file "
            "of torch.save, use torch.load(path, weights_only=True)"
        )
    elif len(data) != int(match[1]):
        reason = f"should have {match[1]} bytes after its first line, has {len(data)}"
    elif _sha256(data) != match[2]:
        reason = "is damaged: its bytes are not those that were written (SHA-256)"
    else:
        return data, match[2]
    raise ValueError(f"{path} {reason}")


def _mark(path):
    """Return how this host begins the names of files that will replace `path`.

    A hash: the names of the host and of the file together may be too long for a name.
    """
    name = os.fsencode(f"{socket.gethostname()}/{path.name}")
    return f".ck-{_sha256(name)[:16]}-"


def _sweep(path):
    """Remove the files that killed processes left, not those of living ones."""
    if not hasattr(os, "fork"):
        return  # Windows: os.kill(pid, 0) would interrupt the process there
    for other in path.parent.glob(f"{_mark(path)}*"):
        name = re.fullmatch(r"(\d{1,9})-\d+", other.name.removeprefix(_mark(path)))
        with suppress(PermissionError):  # another user's
            try:
                if name:
                    os.kill(int(name[1]), 0)  # only asks whether the process exists
            except ProcessLookupError:
                other.unlink(missing_ok=True)


def _sha256(data):
    return hashlib.sha256(data).hexdigest()
