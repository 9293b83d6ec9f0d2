"""Hide the files of this computer from a process that runs learners' cells: Landlock.

    available   whether this system can
    restrict    from now on this process reads only these paths and writes one folder

Linux 5.13 and later let a process give up its rights for good, its children's included,
without being root. From Linux 6.12 on it can no longer send signals to others either.
See landlock(7). Elsewhere files can be read: grade in a container there.
"""

import ctypes
import os
import struct
import sys

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, the same on every architecture
PR_SET_NO_NEW_PRIVS = 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
SCOPES = 3  # abstract sockets and signals
VERSION = 1


def available():
    """Return whether this system has Landlock."""
    return _version() > 0


def restrict(readable, folder):
    """Keep this process to reading `readable` and to reading and writing `folder`."""
    version = _version()
    if version <= 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # every right that this version knows: 13, then REFER, TRUNCATE, IOCTL_DEV
    rights = 2 ** (13 + (version >= 2) + (version >= 3) + (version >= 5)) - 1
    fields = [rights] + [0] * (version >= 4) + [SCOPES] * (version >= 6)
    rules = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _must(libc.syscall(CREATE, rules, len(rules), 0))
    for path in [*readable, folder]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # not on this system
            continue
        allowed = rights if path == folder else EXECUTE | READ_FILE | READ_DIR
        if path == os.devnull:
            allowed |= WRITE_FILE
        if not os.path.isdir(path):
            allowed &= EXECUTE | READ_FILE | WRITE_FILE
        rule = struct.pack("=Qi", allowed & rights, fd)
        _must(libc.syscall(ADD, ruleset, 1, rule, 0))
        os.close(fd)
    _must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must(libc.syscall(RESTRICT, ruleset, 0))
    os.close(ruleset)


def _version():
    if sys.platform != "linux":
        return 0
    return ctypes.CDLL(None).syscall(CREATE, None, 0, VERSION)


def _must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused a rule")
    return result
