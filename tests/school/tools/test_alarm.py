"""What takes too long ends, and the clocks are as they were, whenever the alarm rings."""

import contextlib
import signal
import sys
import threading
import time

import pytest

from manual_dp.school.tools.alarm import alarm

LATE = TimeoutError("late")
NUMBERS = (signal.SIGALRM, signal.SIGVTALRM)
CLOCKS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)


def mine(*_):
    """Be the handler that was there before."""


@pytest.fixture(autouse=True)
def clocks_as_they_were():
    before = [signal.signal(number, mine) for number in NUMBERS]
    yield
    handlers = [signal.getsignal(number) for number in NUMBERS]
    left = [signal.getitimer(clock) for clock in CLOCKS]
    for number, handler in zip(NUMBERS, before):
        signal.signal(number, handler)
    assert handlers == [mine, mine] and left == [(0, 0), (0, 0)]


def busy():
    while True:
        pass


@pytest.mark.parametrize("block, clocks", [
    (lambda: time.sleep(60), (0.01,)), (busy, (60, 0.01)), (busy, (0.02, 0.02))])
def test_what_waits_or_computes_too_long_ends(block, clocks):
    with pytest.raises(TimeoutError) as error, alarm(LATE, *clocks):
        block()
    assert error.value is LATE


def test_what_ends_in_time_is_left_alone():
    with alarm(LATE, 60, 60):
        assert all(0 < signal.getitimer(clock)[0] <= 61 for clock in CLOCKS)
    with alarm(LATE, 0):
        assert [signal.getitimer(clock) for clock in CLOCKS] == [(0, 0), (0, 0)]


def test_errors_of_the_block_are_passed_on():
    with pytest.raises(TimeoutError, match="own"), alarm(LATE, 60):
        raise TimeoutError("its own")


@pytest.mark.parametrize("in_time", [True, False])
def test_an_alarm_while_the_clocks_are_put_back_is_not_heard(monkeypatch, in_time):
    set_timer = signal.setitimer

    def ring_once_more(clock, seconds):
        set_timer(clock, seconds)
        if seconds == 0:
            signal.raise_signal(signal.SIGALRM)
    with contextlib.suppress(KeyError), alarm(LATE, 60, 60):
        monkeypatch.setattr(signal, "setitimer", ring_once_more)
        if not in_time:
            raise KeyError("an error of the block stays what it is")


@pytest.mark.parametrize("where", ["put_back", "__exit__"])
def test_an_alarm_just_before_the_clocks_are_put_back_is_raised_and_they_are(where):
    def ring_first(frame, *_):
        if frame.f_code.co_name == where:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
    before = sys.gettrace()
    try:
        with pytest.raises(TimeoutError), alarm(LATE, 60, 60):
            sys.settrace(ring_first)
    finally:
        sys.settrace(before)


def test_another_thread_has_no_limit():
    ended = []

    def work():
        with alarm(LATE, 0.01):
            time.sleep(0.1)
        ended.append(True)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
