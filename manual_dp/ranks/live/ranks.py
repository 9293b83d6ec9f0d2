"""The caller's side of ranks that stay: start them, send them cells, end them.

Ranks     start ranks, run code in them, look at their names, end them
current   the ranks of the notebook's last %ranks
load_ipython_extension   %load_ext manual_dp.ranks: %ranks and %%ranks (magics.py)
"""

import os
import threading
import warnings
import weakref

from manual_dp.ranks.launch import RankError, launch
from manual_dp.ranks.launch.rank import pack
from manual_dp.ranks.live.warden import watch_cells

# seconds, for the process group's own deadline: it must never come before a cell's
FOR_EVER = 10**6


class Ranks:
    """Start `world_size` ranks; run code in them. They stay until `close`.

    Each rank's code can use torch, dist, rank and world_size; the seed of torch, random
    and numpy is the rank. The process group is open. With group=False it is not, and
    `store` is the path of an empty file, for a FileStore in which the ranks meet.
    If a rank dies, or hangs when time is up, all ranks are ended. The next call starts
    new ones, without the names that earlier cells made. If a cell raises after it has
    sent a message that no rank received, the next cell can still receive it.
    """

    last = None  # the Ranks that the notebook's last %ranks started

    def __init__(self, world_size, group=True, backend="gloo"):
        launch.check_start(world_size, backend)
        self.world_size, self.group, self.backend = world_size, group, backend
        # _line: the socket to the warden, None while no ranks run
        self._runs, self._line, self._closed = 0, None, False
        self._one_at_a_time = threading.Lock()
        _open.add(self)
        self._start()

    def run(self, code, ranks=None, timeout=60):
        """Run `code` in every rank, or in `ranks`; return their last values, a list.

        For a value that cannot be sent, return its repr. What the ranks print is
        printed here, rank by rank. Raises SyntaxError before anything is sent, and
        RankError if a rank raises, dies, or is not done when time is up.
        """
        self._runs += 1
        return self.run_cell(code, f"run {self._runs}", ranks, timeout)

    def run_cell(self, code, name, ranks=None, timeout=60, show=None):
        """Do as `run` does; errors call the code `name`, such as "cell 3".

        show: None to return the last values; True to let the ranks print them, and
        False to drop them: then all that is returned is None.
        """
        ranks = self._check_ranks(ranks)
        launch.check_timeout(timeout)
        _check_syntax(code, name)
        cell = {"name": name, "code": code, "show": show}
        return self._send(cell, ranks, timeout)

    def push(self, **values):
        """Give every rank a copy of each value, under its name."""
        packed = pack(values, "the values cannot be sent")
        self._send({"name": "push", "values": packed}, range(self.world_size), 60)

    def __getitem__(self, name):
        """Return the values that `name` has in the ranks, a list."""
        if not isinstance(name, str) or not name.isidentifier():
            raise KeyError(f"ask for a name of the ranks, such as 'loss', not {name!r}")
        return self.run(name)

    def close(self):
        """End the ranks and all processes that they have started."""
        self._closed = True
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __str__(self):
        if self.world_size == 1:
            return f"1 rank runs: {self._numbers()}."
        return f"{self.world_size} ranks run: {self._numbers()}."

    def _numbers(self):
        """Return the ranks' numbers and their group, such as "0 to 3 (gloo)"."""
        last = self.world_size - 1
        group = self.backend if self.group else "no group yet"
        return f"0 to {last} ({group})" if last else f"0 ({group})"

    def _check_ranks(self, ranks):
        """Return the ranks in order, all for None; ValueError if there are no such."""
        ranks = list(range(self.world_size) if ranks is None else ranks)
        wrong = [rank for rank in ranks if rank not in range(self.world_size)]
        if wrong or not ranks or len(set(ranks)) < len(ranks):
            raise ValueError(
                f"ranks must be some of 0 to {self.world_size - 1}, each "
                f"once, got {ranks}"
            )
        return sorted(ranks)

    def _send(self, cell, ranks, timeout):
        """Let these ranks run the cell; return their values."""
        if self._closed:
            raise RankError(
                "these ranks are closed: start new ones with Ranks, or %ranks"
            )
        cell.update(ranks=list(ranks), timeout=timeout)
        with self._one_at_a_time:
            if self._line is None:
                self._start()
                print(
                    f"New ranks: {self._numbers()}. "
                    "The names of earlier cells are gone."
                )
            report = self._ask(cell, timeout)
        launch.show(report)
        return [
            launch.unpack(rank, value) for rank, value in zip(ranks, report["results"])
        ]

    def _start(self):
        """Start the ranks; RankError if they do not meet."""
        job = launch.make_job(
            self.world_size, FOR_EVER, self.backend, group=self.group, watch=watch_cells
        )
        line, warden = launch.start_warden()
        self._end_warden = weakref.finalize(  # called once, at the latest with `self`
            self, launch.end_warden, line, warden, job["folder"]
        )
        self._line = line
        launch.show(self._ask(job, launch.START))

    def _ask(self, message, timeout):
        """Return the warden's report; end the ranks unless they can run more cells."""
        report = None
        try:
            report = launch.ask_warden(self._line, message, timeout)
            return report
        finally:  # also on an interrupt
            # a warden that could not start the ranks reports without "over"
            if report is None or report.get("over", True):
                self._end()

    def _end(self):
        self._line = None
        self._end_warden()

    def _forget(self):
        """Close the line, end nothing: in a fork, the ranks are the other process's."""
        if self._line:
            self._end_warden.detach()
            self._line.close()
            self._line = None


def _check_syntax(code, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rank warns when it compiles the code
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


_open = weakref.WeakSet()  # all Ranks of this process


def _forget_all():
    for ranks in _open:
        ranks._forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)
