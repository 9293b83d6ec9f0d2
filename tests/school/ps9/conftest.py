"""What tests of problem set 9 share."""

import pytest

from manual_dp.school.grader.worker import Worker


@pytest.fixture(scope="module")
def worker():
    """Return a worker in which a file's tests run answers."""
    worker = Worker()
    yield worker
    worker.close()
