"""How much a group of processes takes: threads, and memory, wherever it lies.

    own_memory    what this process has, which its forks share
    threads_of    of all of them
    memory_of     of all of them, beyond what they share with this process
    seconds_below for how long children of a process have computed

Memory is what they wrote and what they share with one another, also in files that have
no name. The sum of what each has counts what several share several times; only if that
is too much is it worth to ask the system for the exact shares, which is slow.
"""

import os
from contextlib import suppress

KIB = 1024
BLOCK = 512  # bytes: the unit of st_blocks


def own_memory():
    """Return how many bytes this process has of its own: a fork begins with them."""
    return _of(os.getpid())[1]


def threads_of(pids):
    """Return how many threads run in the processes."""
    return sum(_of(pid)[0] for pid in pids)


def memory_of(pids, shared, limit):
    """Return the bytes that the processes hold beyond `shared`, exact above `limit`."""
    unnamed = _unnamed(pids)
    quick = unnamed + sum(max(0, _of(pid)[1] - shared) for pid in pids)
    if quick <= limit:
        return quick
    return unnamed + max(0, sum(map(_share, pids)) - shared)


def seconds_below(pid):
    """Return for how many seconds children that `pid` has reaped have computed."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _of(pid):
    """Return a process's threads, and the bytes that no file on a disk holds."""
    found = _fields(f"/proc/{pid}/status", ("Threads", "RssAnon", "RssShmem"))
    return found[0], (found[1] + found[2]) * KIB


def _share(pid):
    return sum(_fields(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))) * KIB


def _fields(path, names):
    """Return the numbers that stand behind the names; 0 where there is none."""
    found = dict.fromkeys(names, 0)
    with suppress(OSError), open(path, errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0])
    return list(found.values())


def _unnamed(pids):
    """Return the bytes in open files that lie in memory and have no name."""
    sizes = {}
    for pid in pids:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:"):
                        info = os.stat(f"/proc/{pid}/fd/{fd}")
                        sizes[info.st_dev, info.st_ino] = info.st_blocks * BLOCK
    return sum(sizes.values())
