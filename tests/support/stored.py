"""Run a notebook and compare what it prints with what is stored.

nbval     run a notebook as `make test` does; pytest's status, what it printed
LESSONS   the files of the lessons, the first one first
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.lessons import LESSONS as NAMES

ROOT = Path(__file__).parents[2]
LESSONS = [ROOT / "notebooks" / f"{name}.ipynb" for name in NAMES]


def nbval(notebook, timeout=1500):
    """Run a notebook as `make test` does; return its status and what it printed."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--nbval",
            "--nbval-current-env",
            "--nbval-cell-timeout=600",
            str(notebook),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout + run.stderr
