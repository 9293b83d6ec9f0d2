"""What tests of the grader share."""

import pytest

from manual_dp.school.grader.worker import Worker
from tests.support.classroom import Classroom, without_running


@pytest.fixture(scope="module")
def worker():
    """Return a worker in which a file's tests run answers."""
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def classroom(tmp_path, capsys, monkeypatch):
    """Return a class whose answers are judged by their text: nothing is run."""
    without_running(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Classroom(tmp_path, capsys)
