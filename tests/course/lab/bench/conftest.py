"""What tests of the bench share."""

import pytest

from course.lab.bench import ROWS, bench, calls


@pytest.fixture
def tiny():
    """Return a function that runs rows of the bench on tiny sizes, one pair each."""
    def tiny(*names, **options):
        return bench(names, **{"repeat": 1, "batches": 3, "batch_size": 4,
                               "numbers": 640, **options})
    return tiny


@pytest.fixture
def no_files(monkeypatch):
    def load_data(name, root):
        raise FileNotFoundError("neither files nor network")
    monkeypatch.setattr(calls, "load_data", load_data)


@pytest.fixture
def planted(monkeypatch):
    """Return a function that adds a row whose sides return the given seconds."""
    def plant(ours, theirs, share=1):
        ours, theirs = iter(ours), iter(theirs)
        monkeypatch.setitem(ROWS, "planted", (
            lambda setup: ("a / b", lambda: next(ours), lambda: next(theirs)),
            share, 1.5))
    return plant
