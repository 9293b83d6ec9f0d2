"""Kernels here wait for an event that the test sets: no clock decides."""

import time
from threading import Event

import pytest

from course.lab.scaling.device import (
    AsynchronousDevice,
    clocked,
    expected,
    read_clock,
)

LONG = 60  # seconds, after which a test that hangs has failed


@pytest.fixture
def device():
    with AsynchronousDevice() as found:
        yield found


def test_a_launch_returns_before_its_work_is_done(device):
    go, done = Event(), []

    def kernel(value):
        assert go.wait(LONG)
        done.append(value)
    device.launch(kernel, 1)
    assert done == []
    go.set()
    device.synchronize()
    assert done == [1]


def test_kernels_run_one_after_the_other_in_the_order_of_their_launch(device):
    done = []

    def kernel(value, seconds):
        time.sleep(seconds)
        done.append(value)
    for value in range(4):
        device.launch(kernel, value, 0.02 * (4 - value))
    device.synchronize()
    assert done == [0, 1, 2, 3]


def test_nothing_to_do_is_no_wait(device):
    device.synchronize()


def test_an_error_is_raised_by_the_next_synchronize_and_ends_what_came_behind(device):
    done = []
    device.launch(lambda: 1 / 0)
    device.launch(done.append, 1)
    with pytest.raises(ZeroDivisionError):
        device.synchronize()
    device.launch(done.append, 2)
    device.synchronize()
    assert done == [2]


def test_the_thread_ends_with_the_block():
    with AsynchronousDevice() as device:
        pass
    assert not device.thread.is_alive()


class Counting:
    """A device that only notes what it is asked."""

    def __init__(self):
        self.asked = []

    def launch(self, kernel, seconds):
        self.asked.append(f"{kernel.__name__} {seconds}")

    def synchronize(self):
        self.asked.append("wait")


def test_the_program_waits_once_a_step_or_after_each_kernel():
    once, each = Counting(), Counting()
    kernels = {"forward": 3, "backward": 6}
    ends = read_clock(once, kernels, 0, False, tick=1000)
    assert [part for part, _ in ends] == ["forward", "backward", "load",
                                          "read the loss"]
    read_clock(each, kernels, 0, True, tick=1000)
    assert once.asked == ["sleep 3000", "sleep 6000", "wait"]
    assert each.asked == ["sleep 3000", "wait", "sleep 6000", "wait", "wait"]


@pytest.mark.parametrize("wait, parts", [
    (False, {"forward": 0, "backward": 0, "load": 1, "read the loss": 3, "step": 4}),
    (True, {"forward": 2, "backward": 2, "load": 1, "read the loss": 0, "step": 5})])
def test_the_clock_says_what_is_right_only_after_a_wait(wait, parts):
    assert clocked({"forward": 2, "backward": 2}, 1, wait, tick=0.1) == parts


def test_a_short_load_leaves_the_rest_of_the_kernels_to_who_reads_the_loss():
    assert expected({"forward": 2, "backward": 4}, 1, False) == [
        ("forward", 0), ("backward", 0), ("load", 1), ("read the loss", 6)]


def test_the_time_of_a_long_load_hides_the_kernels():
    assert expected({"forward": 2}, 5, False)[-1] == ("read the loss", 5)
    assert expected({"forward": 2}, 5, True)[-1] == ("read the loss", 7)
