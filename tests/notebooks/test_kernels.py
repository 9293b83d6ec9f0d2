"""What speaks to kernels ends quietly at a signal, whichever task is at work then."""

import asyncio
import gc
import os
import signal

import pytest
from kernels import let_signals_stop, unless_stopped  # notebooks/tools


@pytest.fixture
def signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT,
                                                              signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    let_signals_stop()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def at_work(act):
    await asyncio.sleep(0)
    act()


async def slow_to_end():
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)


async def run(act, last):
    asyncio.get_running_loop().set_exception_handler(unless_stopped)
    tasks = [asyncio.ensure_future(at_work(act)), asyncio.ensure_future(slow_to_end())]
    try:
        await asyncio.sleep(60)
    finally:
        last()
        tasks.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_that_comes_while_a_task_runs_is_all_that_is_said(
        number, times, signals, capfd, caplog):
    def stop():
        os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run(stop, stop if times == 2 else list))
    gc.collect()
    assert capfd.readouterr().err == caplog.text == ""


def test_a_task_that_fails_by_itself_is_spoken_of(caplog):
    async def forgotten():
        asyncio.get_running_loop().set_exception_handler(unless_stopped)
        asyncio.ensure_future(at_work(lambda: 1 / 0))
        await asyncio.sleep(0.01)
        gc.collect()
    asyncio.run(forgotten())
    assert "ZeroDivisionError" in caplog.text
