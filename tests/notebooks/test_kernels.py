"""What speaks to kernels ends quietly at a signal, whichever task is at work then."""

import asyncio
import gc
import os
import signal

import pytest
from kernels import let_signals_stop, unless_stopped
from lessons import execute  # notebooks/tools
from nbformat.v4 import new_code_cell, new_notebook
from tqdm import tqdm


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


# names are arguments: those of the cell are gone when this runs
CLOSES_TOO_EARLY = """
import sys, time
kernel, thread = get_ipython().kernel, sys.stderr.pub_thread
class Pipe:
    def __init__(self, socket):
        self.socket = socket
    def send(self, given, wait=time.sleep):
        while not self.socket.closed:
            wait(0.01)
        self.socket.send(given)
async def end(*given, end=kernel.shutdown_request, thread=thread, Pipe=Pipe):
    await end(*given)
    thread._local.event_pipe = Pipe(thread._event_pipe)
def stop(stop=thread.stop, wait=time.sleep):
    wait(0.5)
    stop()
kernel.control_handlers["shutdown_request"], thread.stop = end, stop
"""
AT_EXIT = """
import atexit, os
atexit.register(os.write, 2, b"at the exit")
"""


@pytest.mark.parametrize("cell, heard", [
    (CLOSES_TOO_EARLY, ""), (AT_EXIT, "at the exit"),
    (CLOSES_TOO_EARLY + AT_EXIT, "at the exit"),
    ("import faulthandler, os; faulthandler.enable(); os.abort()", "Fatal Python error")])
def test_what_a_kernel_says_after_its_cells_is_told_but_not_that_it_closed_its_sockets(
        cell, heard, tmp_path, capfd):
    nb = new_notebook(cells=[new_code_cell(cell)])
    failure = asyncio.run(execute(nb, tmp_path, 60, tqdm(disable=True)))
    said = capfd.readouterr().err
    assert bool(failure) == ("abort" in cell) and said.startswith(heard)
    assert said == heard or "abort" in cell
