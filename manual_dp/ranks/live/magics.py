"""%ranks and %%ranks, for notebooks.

    %ranks 4                start 4 ranks; those that run are ended first
    %ranks                  say which ranks run
    %ranks 4 --no-group     start them without a process group: a cell opens it
    %ranks stop             end them
    %%ranks                 run this cell on every rank
    %%ranks 1 3             run it on these ranks
    %%ranks --timeout 3     give it 3 seconds; without this, 60
    %%ranks --show-error    expect an error: print its text, and let the notebook go on

Errors name a cell by the number that stands beside it. If cells are run without
numbers, as nbval does, the cell that loads this counts as cell 1.
"""

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from manual_dp.ranks.launch import RankError
from manual_dp.ranks.launch.launch import check_start
from manual_dp.ranks.live.ranks import Ranks, current


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
                # IPython shows what this returns, in place of the launcher's own frames
                error._render_traceback_ = lambda: lines
                raise
            print(f"{type(error).__name__}: {error}")

    def _start(self, asked):
        if not asked.numbers:
            print(Ranks.last or "No ranks run: start them with %ranks 4.")
            return
        stop = asked.numbers == ["stop"]
        if not stop:  # check everything before the running ranks are ended
            world_size, *more = _whole(asked.numbers)
            if more:
                raise UsageError("%ranks takes one number: how many ranks to start")
            check_start(world_size, asked.backend)
        if Ranks.last:
            Ranks.last.close()
            Ranks.last = None
        if stop:
            print("No ranks run.")
            return
        Ranks.last = Ranks(world_size, not asked.no_group, asked.backend)
        print(Ranks.last, "Names live on from cell to cell.")

    def _run(self, asked, cell):
        try:
            ranks = current()
        except RuntimeError as error:
            raise UsageError(str(error)) from None
        if (
            self.numbered
        ):  # then the history, whose last entry is this cell, knows better
            self.number = len(self.shell.history_manager.input_hist_raw) - 1
        # The line break stands for the line "%%ranks": so errors give a line the number
        # that the reader sees in the notebook.
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
    """Return what a notebook shows of an error: the rank's traceback, then its text."""
    details = getattr(error, "details", "").rstrip()
    text = f"{type(error).__name__}: {error}"
    return [details, "", text] if details else [text]
