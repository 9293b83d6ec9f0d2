"""Ranks that stay: run code in several processes, cell after cell; never hang.

    Ranks     start ranks, run code in them, look at their names, end them
    current   the ranks of the notebook's last %ranks
    load_ipython_extension   %load_ext manual_dp.ranks: %ranks and %%ranks (magics.py)

The launcher (ranks/launch) starts the ranks, kills them and names what went wrong.
Here its warden hands the ranks one cell after another (warden.py), and a rank keeps
the names that a cell has made for the next (rank.py).
"""

import os
import threading
import warnings
import weakref

from manual_dp.ranks import launch
from manual_dp.ranks.launch import RankError
from manual_dp.ranks.launch.rank import pack
from manual_dp.ranks.live.warden import watch

FOR_EVER = 10**6  # seconds: no deadline of the group's own comes before a cell's


class Ranks:
    """Start `world_size` ranks; run code in them. They stay until `close`.

    In each there are torch, dist, rank and world_size; the seed of torch, random and
    numpy is the rank. The group is open; with group=False it is not: `store` is the
    path of an empty file to meet in.
    If a rank has died, or hangs when time is up, all of them are ended, and the next
    call starts new ones, which know no names. A message that was sent in a cell that
    raised, and not received, is still on its way in the next.
    """

    last = None  # of the notebook's %ranks

    def __init__(self, world_size, group=True, backend="gloo"):
        launch.check_start(world_size, backend)
        self.world_size, self.group, self.backend = world_size, group, backend
        self._runs, self._line, self._closed = 0, None, False
        self._one_at_a_time = threading.Lock()
        _open.add(self)
        self._start()

    def run(self, code, ranks=None, timeout=60):
        """Run `code` in every rank, or in `ranks`; return their last values, a list.

        A value that cannot be sent comes as the text that it prints. What the ranks
        print is printed here, rank by rank. Raises SyntaxError before anything is
        sent, and RankError if a rank raises, dies, or is not done when time is up.
        """
        self._runs += 1
        return self.run_cell(code, f"run {self._runs}", ranks, timeout)

    def run_cell(self, code, name, ranks=None, timeout=60, show=None):
        """Do as `run` does; errors say `name`. show: whether the ranks print the value.

        With None they return it, as `run` does.
        """
        ranks = self._checked(ranks)
        launch.check_timeout(timeout)
        _check_syntax(code, name)
        return self._send(
            {
                "name": name,
                "code": code,
                "show": show,
                "ranks": ranks,
                "timeout": timeout,
            }
        )

    def push(self, **values):
        """Give every rank a copy of each value, under its name."""
        self._send(
            {
                "name": "push",
                "ranks": self._checked(None),
                "timeout": 60,
                "values": pack(values, "the values cannot be sent"),
            }
        )

    def __getitem__(self, name):
        """Return the values that `name` has in the ranks, a list."""
        if not isinstance(name, str) or not name.isidentifier():
            raise KeyError(f"a name of the ranks, such as 'loss', not {name!r}")
        return self.run(name)

    def close(self):
        """End the ranks and all that they have started; nothing is left of them."""
        self._closed = True
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __str__(self):
        return (
            "1 rank runs: "
            if self.world_size == 1
            else f"{self.world_size} ranks run: "
        ) + self._which()

    def _which(self):
        last = self.world_size - 1
        group = self.backend if self.group else "no group yet"
        return f"0 to {last} ({group})." if last else f"0 ({group})."

    def _checked(self, ranks):
        ranks = list(range(self.world_size) if ranks is None else ranks)
        wrong = [rank for rank in ranks if rank not in range(self.world_size)]
        if wrong or not ranks or len(set(ranks)) < len(ranks):
            raise ValueError(
                f"ranks must be some of 0 to {self.world_size - 1}, each "
                f"once, got {ranks}"
            )
        return sorted(ranks)

    def _send(self, cell):
        if self._closed:
            raise RankError("these ranks are closed")
        with self._one_at_a_time:
            if self._line is None:
                self._start()
                print(
                    f"New ranks: {self._which()} The names of earlier cells are gone."
                )
            report = self._ask(cell, cell["timeout"])
        launch.show(report)
        return [
            launch.unpack(rank, value)
            for rank, value in zip(cell["ranks"], report["results"])
        ]

    def _start(self):
        job = launch.make_job(
            self.world_size, FOR_EVER, self.backend, group=self.group, watch=watch
        )
        line, warden = launch.connect()
        self._hang_up = weakref.finalize(
            self, launch.hang_up, line, warden, job["folder"]
        )
        self._line = line
        launch.show(self._ask(job, launch.START))

    def _ask(self, message, timeout):
        """Return the warden's report; without ranks unless they can go on."""
        report = None
        try:
            report = launch.ask(self._line, message, timeout)
            return report
        finally:  # also on an interrupt
            if report is None or report.get("over", True):
                self._end()

    def _end(self):
        self._line = None
        self._hang_up()

    def _forget(self):
        """Leave the ranks to the process that this one was forked from."""
        if self._line:
            self._hang_up.detach()
            self._line.close()
            self._line = None


def _check_syntax(code, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rank says it
        compile(code, name, "exec", dont_inherit=True)


def current():
    """Return the ranks that the notebook's last %ranks started."""
    if Ranks.last is None:
        raise RuntimeError("no ranks run: start them with %ranks 4")
    return Ranks.last


def load_ipython_extension(shell):
    """Add %ranks and %%ranks to the notebook."""
    from manual_dp.ranks.live.magics import RanksMagics

    shell.register_magics(RanksMagics)


_open = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [ranks._forget() for ranks in _open])
