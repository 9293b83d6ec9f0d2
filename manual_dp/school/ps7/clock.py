"""A machine with a fake clock, for exercise 7.7: time passes only when it is used.

    Machine   programs to call, `synchronize` and `clock`; made of recorded seconds
"""

import math


class Machine:
    """Play a machine on which some programs only start their work, and return.

    recorded: {"a", "b": {"seconds": of each call, "launch": None, or the seconds that a
    call takes that only starts the work}, "speed": a factor for each call, "tick"}.
    """

    def __init__(self, recorded):
        self.recorded = recorded
        self.now, self.busy_until = 1000.0, 0.0
        self.calls = {"a": 0, "b": 0}

    def call(self, name):
        """Run program "a" or "b" once."""
        program, speed = self.recorded[name], self.recorded["speed"]
        factor = speed[min(sum(self.calls.values()), len(speed) - 1)]
        seconds = program["seconds"]
        work = seconds[min(self.calls[name], len(seconds) - 1)] * factor
        self.calls[name] += 1
        self.busy_until = max(self.now, self.busy_until) + work
        if program["launch"] is None:
            self.now = self.busy_until
        else:
            self.now += program["launch"]

    def synchronize(self):
        """Wait until all work that was started is done."""
        self.now = max(self.now, self.busy_until) + 1e-6

    def clock(self):
        """Return the time in seconds, in whole ticks."""
        self.now += 1e-7
        tick = self.recorded["tick"]
        return math.floor(self.now / tick) * tick
