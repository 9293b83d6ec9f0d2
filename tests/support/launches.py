"""What tests of launches share: the nursery, what is still alive, an error in time.

All that a test's process starts has its mark in the environment, from the start: so one
nursery serves all files. A new one for each took seven seconds to import torch and more.
"""

import contextlib
import os
import time

import psutil
import pytest

from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.launch import launch

MARK = "MANUAL_DP_TEST_LAUNCH"
os.environ[MARK] = f"{os.getpid()} {time.time()}"
SOON = 20  # seconds: a deadline that no test here should need
LATE = 25  # seconds more on a busy machine; what hangs in these tests hangs for 50


def nursery():
    """Return the process that forks this process's ranks, or None."""
    return launch._nursery(os.getpid()).process


def alive():
    """Return the processes that this one's tests have started, without the nursery."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = process.environ().get(MARK) == os.environ[MARK]
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    idle = {os.getpid(), nursery() and nursery().pid}
    return {process for process in found if process.pid not in idle}


@pytest.fixture
def nothing_is_left():
    """Fail if a process that the test has started, or one of theirs, outlives it."""
    before = alive()
    yield
    gone = until(lambda: alive() <= before)
    assert gone, alive() - before


def until(condition, seconds=LATE):
    """Wait until condition() holds; return whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return holds


def error_of(function, *args, world_size=2, timeout=SOON):
    """Return the RankError of a launch, which comes in time."""
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_ranks(function, world_size, *args, timeout=timeout)
    assert time.monotonic() - start < timeout + LATE
    return caught.value
