"""Time what happens before any work: imports, and the start of ranks."""

import subprocess
import sys
from functools import partial
from pathlib import Path

from manual_dp.lab.bench.turns import seconds
from manual_dp.ranks import run_ranks


def imports(setup):
    """Return the row: `import manual_dp` and `import torch`, each in a new Python."""
    return ("import manual_dp / import torch",
            partial(_new_python, "import time", "import manual_dp"),
            partial(_new_python, "import time", "import torch"))


def launch(world_size, setup):
    """Return the row: ranks that do nothing, and one second."""
    def nothing():
        run_ranks(int, world_size)  # int() is 0
    return (f"run_ranks on {world_size} ranks, in seconds",
            partial(seconds, nothing), lambda: 1.0)


def first_launch(setup):
    """Return the row: two ranks that do nothing, in a new Python, and one second."""
    before = "import time; from manual_dp.ranks import run_ranks"
    return ("the first run_ranks, in seconds",
            partial(_new_python, before, "run_ranks(int, 2)"), lambda: 1.0)


def _new_python(before, timed):
    code = f"{before}; t = time.time(); {timed}; print(time.time() - t)"
    return float(subprocess.check_output([sys.executable, "-c", code],
                                         cwd=Path(__file__).parents[3]))
