"""For every test: one thread, the same examples each run, and nothing left behind."""

import os
import signal

import psutil
import pytest
import torch
from hypothesis import settings

from manual_dp import get_params, init_params
from manual_dp.ranks.launch import launch
from tests.support.forked import (  # noqa: F401, fixtures
    forked_audit,
    forked_ranks,
    forked_torchrun,
)
from tests.support.launches import nothing_is_left  # noqa: F401

# Two threads on two busy cores wait for each other: a step took 20 times as long.
torch.set_num_threads(1)
settings.register_profile(
    "course", database=None, deadline=None, derandomize=True, max_examples=60
)
settings.load_profile("course")


def _surroundings():
    # torch and scikit-learn set variables of their own when first used
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "TORCH", "PYTORCH_", "KMP_"))
    }
    return (
        environment,
        os.getcwd(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


@pytest.fixture(autouse=True)
def surroundings_stay_as_they_were():
    before = _surroundings()
    yield
    assert _surroundings() == before


def _processes():
    # the nursery stays to fork the next launch's ranks; what it forks may not
    nursery = launch._nursery(os.getpid()).process
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if nursery is None or process.pid != nursery.pid
    }


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left():
    before = _processes()
    yield
    _, left = psutil.wait_procs(_processes() - before, timeout=5)
    assert left == []


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt this process and its children.

    A worker of xdist ignores it, and so does a suite that runs in the background.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def batch():
    """Return a function that draws a minibatch: distinct, continuous images."""

    def batch(rows, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(rows, 1, 28, 28, dtype=torch.float64, generator=generator)
        return X.to(dtype), torch.randint(10, (rows,), generator=generator)

    return batch


@pytest.fixture(scope="session")
def replicas():
    """Return a function that makes `world_size` replicas of one He-sized LeNet."""

    def replicas(world_size, dtype=torch.float64):
        params = init_params("he", torch.Generator().manual_seed(0), dtype)
        return [get_params(params, "cpu") for _ in range(world_size)]

    return replicas
