"""What hostile answers of a problem set must not reach."""

import glob
import tempfile
from pathlib import Path

import psutil

PLACES = ("/tmp", "/var/tmp", "/dev/shm", str(Path.home()), tempfile.gettempdir(), ".")


def gains_no_point(message):
    """Return whether an answer was refused whole."""
    return bool(message) and getattr(message, "points", 0) == 0


def left_files():
    """Return the files that answers have left; they name them mdp_left_..."""
    return [path for place in PLACES for path in glob.glob(f"{place}/mdp_left_*")]


def left_processes(worker):
    """Return the processes that are still below the worker."""
    return psutil.Process(worker.process.pid).children(True)
