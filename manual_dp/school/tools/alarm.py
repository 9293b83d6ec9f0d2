"""End a block that takes too long, and leave the clocks as they were.

    alarm   raise an error in the block when its seconds are over
"""

import signal
import threading
from contextlib import contextmanager


@contextmanager
def alarm(error, seconds, computing=0):
    """Raise `error` in the block after so many seconds, and never behind the block.

    computing: seconds of computing after which it is raised as well; 0: no limit, of
    both. Only the main thread can be interrupted: the block of another has no limit,
    nor has any on Windows, where there are no such clocks.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    over = False

    def ring(*_):
        if not over:
            put_back()  # the error may be raised where the block's end is not seen
            raise error
    clocks = {signal.ITIMER_VIRTUAL: (signal.SIGVTALRM, computing),
              signal.ITIMER_REAL: (signal.SIGALRM, seconds)}
    before = {number: signal.signal(number, ring) for number, _ in clocks.values()}

    def put_back():
        nonlocal over
        if over:
            return  # others may have clocks of their own by now
        over = True
        for clock in clocks:
            signal.setitimer(clock, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        for clock, (_, after) in clocks.items():
            signal.setitimer(clock, after)
        yield
    finally:
        put_back()
