"""%ranks and %%ranks, for notebooks.

    %ranks 4                start ranks, or start them afresh; %ranks alone: which run
    %ranks 4 --no-group     without a process group: the notebook opens one by hand
    %ranks stop             end them
    %%ranks                 run this cell on every rank
    %%ranks 1 3             on these
    %%ranks --timeout 3     seconds; 60 if none are said
    %%ranks --show-error    an error on purpose: print what it says, go on

Errors name a cell by the number that stands beside it. Where cells are run without
numbers, as nbval does, they are counted from the cell that loads this, as cell 1.
"""

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from manual_dp.ranks import live
from manual_dp.ranks.launch import RankError, check_start


@magics_class
class RanksMagics(Magics):
    """Keep the notebook's ranks, and count its cells."""

    def __init__(self, shell):
        super().__init__(shell)
        self.number, self.numbered = 1, False
        shell.events.register("pre_run_cell", self._count)

    def _count(self, info):
        self.number, self.numbered = self.number + 1, info.store_history

    @magic_arguments()
    @argument("numbers", nargs="*", help="%%ranks: which ranks; %%%%ranks: how many")
    @argument("--no-group", action="store_true", help="start without a process group")
    @argument("--backend", default="gloo", help="gloo, or nccl on GPUs")
    @argument("--timeout", type=float, default=60, help="seconds for this cell")
    @argument("--show-error", action="store_true", help="print the error, go on")
    @line_cell_magic
    def ranks(self, line, cell=None):
        """Start ranks that stay (%ranks 4), or run a cell on them (%%ranks)."""
        asked = parse_argstring(self.ranks, line)
        if cell is None:
            return self._start(asked)
        try:
            self._run(asked, cell)
        except (RankError, SyntaxError) as error:
            if not asked.show_error:
                lines = _lines(error)
                error._render_traceback_ = lambda: lines
                raise
            print(f"{type(error).__name__}: {error}")

    def _start(self, asked):
        if not asked.numbers:
            print(live.Ranks.last or "No ranks run: start them with %ranks 4.")
            return
        stop = asked.numbers == ["stop"]
        if not stop:  # whatever is refused, the ranks that run go on
            world_size, *more = _whole(asked.numbers)
            if more:
                raise UsageError("%ranks takes one number: how many ranks to start")
            check_start(world_size, asked.backend)
        if live.Ranks.last:
            live.Ranks.last.close()
            live.Ranks.last = None
        if stop:
            print("No ranks run.")
            return
        live.Ranks.last = live.Ranks(world_size, not asked.no_group, asked.backend)
        print(live.Ranks.last, "Names live on from cell to cell.")

    def _run(self, asked, cell):
        try:
            ranks = live.current()
        except RuntimeError as error:
            raise UsageError(str(error)) from None
        if self.numbered:  # this cell is in the history
            self.number = len(self.shell.history_manager.input_hist_raw) - 1
        # the first line is %%ranks: so a line's number is the one that the reader sees
        ranks.run_cell(
            "\n" + cell,
            f"cell {self.number}",
            _whole(asked.numbers) or None,
            asked.timeout,
            show=not cell.rstrip().endswith(";"),
        )


def _whole(numbers):
    try:
        return [int(number) for number in numbers]
    except ValueError:
        raise UsageError(f"ranks are whole numbers, not {' '.join(numbers)}") from None


def _lines(error):
    """Return what a notebook shows of an error: the rank's traceback, what it says."""
    details = getattr(error, "details", "").rstrip()
    return [details, ""] * bool(details) + [f"{type(error).__name__}: {error}"]
