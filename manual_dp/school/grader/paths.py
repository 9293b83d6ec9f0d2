"""The paths that a process running learners' cells may read, and those it may not."""

import contextlib
import os
import sys
import sysconfig
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parents[2]


def site():
    """Return the folders of torch and other packages, for `sys.path`."""
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
                   str(Path(torch.__file__).parents[1])})


def readable():
    """Return paths that hold Python, torch and the system's libraries, not the course.

    Where the course, its notebooks or the working directory lie below one of these,
    all other parts of it are named in its stead.
    """
    roots = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *site(),
             "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/hosts",
             "/etc/nsswitch.conf", "/etc/host.conf", "/etc/localtime", "/dev/null",
             "/dev/urandom",
             # gloo looks for a network card before it takes the loopback
             "/sys/bus/pci/devices", "/sys/class/net", "/sys/devices"}
    secret = {str(PACKAGE), str(PACKAGE.parent / "notebooks"), os.getcwd()}
    return sorted({path for root in roots
                   for path in _without(os.path.realpath(root), secret)})


def _without(path, secret):
    """Yield `path`, or where secrets lie below it, all of it but these."""
    if path in secret:
        return
    if not any(other.startswith(path.rstrip("/") + "/") for other in secret):
        yield path
        return
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            yield from _without(os.path.realpath(entry.path), secret)
