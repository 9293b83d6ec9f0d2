"""A real Jupyter kernel for tests, spoken to through files: a port may be taken.

ipc   what a kernel manager needs for it
"""

import functools
import itertools
import os
import tempfile

NUMBERS = itertools.count()


def ipc():
    """Return the arguments for one more kernel manager."""
    place = os.path.join(_folder().name, str(next(NUMBERS)))
    return {"transport": "ipc", "connection_file": f"{place}.json"}


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="kernels-", dir="/tmp")  # a short path
