"""A device that works later: a queue, and a thread that works it off, as on a GPU.

    AsynchronousDevice   launch returns at once; synchronize waits for all of it
    clocked              what a clock says of the parts of a step on it, in ticks
    read_clock           one such step, in seconds
    expected             what the rules of such a device say

A GPU does what it is asked in the order of asking, while the program goes on. Here a
thread stands for it, and a kernel sleeps for whole ticks.
"""

import time
from queue import Queue
from threading import Thread

from course.lab.trace import EARLY, agreed

TICK = 0.08  # seconds


class AsynchronousDevice:
    """Do what is launched, in order, beside the program. Use it in a `with` block."""

    def __init__(self):
        self.queue, self.error = Queue(), None

    def __enter__(self):
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.queue.put(None)
        self.thread.join()

    def launch(self, kernel, *args):
        """Ask for kernel(*args), and return at once, without a result."""
        self.queue.put((kernel, args))

    def synchronize(self):
        """Return when all that was launched is done; raise its first error here.

        After an error, what was launched behind it is left out.
        """
        self.queue.join()
        error, self.error = self.error, None
        if error:
            raise error

    def _work(self):
        while (task := self.queue.get()) is not None:
            kernel, args = task
            try:
                if self.error is None:
                    kernel(*args)
            except Exception as error:
                self.error = error
            finally:
                self.queue.task_done()


def clocked(kernels, load=0, wait=False, tick=TICK):
    """Take a step, and return {part: ticks} as a clock in the program reads them.

    kernels: {part: ticks}, launched one after the other. Then the program itself loads
    for `load` ticks, and reads the loss, for which it has to wait. wait: synchronise
    before the clock is read after each kernel. The last part, "step", is all of it. A
    run that comes late, on a busy machine, is repeated: see `trace.agreed`.
    """
    def once():
        with AsynchronousDevice() as device:
            return read_clock(device, kernels, load, wait, tick)
    rows = expected(kernels, load, wait)
    ends = agreed(once, tick, rounded=_in_ticks, known=rows)
    parts = {name: end - start
             for (name, end), (_, start) in zip(ends, [("", 0), *ends])}
    return parts | {"step": ends[-1][1]}


def read_clock(device, kernels, load, wait, tick):
    """Take such a step on `device`; return [(part, seconds from the start)]."""
    ends, begin = [], time.perf_counter()
    for part, ticks in kernels.items():
        device.launch(time.sleep, ticks * tick)
        if wait:
            device.synchronize()
        ends.append((part, time.perf_counter() - begin))
    time.sleep(load * tick)
    ends.append(("load", time.perf_counter() - begin))
    device.synchronize()  # a value is needed: whoever reads it waits
    return [*ends, ("read the loss", time.perf_counter() - begin)]


def expected(kernels, load, wait):
    """Return what `read_clock` would read without any delay, in ticks."""
    ends, done = [], 0
    for part, ticks in kernels.items():
        done += ticks
        ends.append((part, done if wait else 0))
    now = ends[-1][1] + load
    return [*ends, ("load", now), ("read the loss", max(now, done))]


def _in_ticks(ends, tick):
    return [(part, int(end / tick + EARLY)) for part, end in ends]
