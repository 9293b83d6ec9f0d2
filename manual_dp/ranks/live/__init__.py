"""Ranks that stay: run code in several processes, cell after cell; never hang.

    ranks          Ranks: start ranks, run code in them, look at their names, end them
    magics         %ranks and %%ranks, for notebooks
    warden         the process that hands the ranks one cell after another
    cells          what a rank does: run cells, keep the names that they make
    cell_verdict   what happened in a cell, with a line for each rank

The launcher (ranks/launch) starts the ranks, kills them and names what went wrong.
"""

from manual_dp.ranks.live.ranks import Ranks, current, load_ipython_extension

__all__ = ["Ranks", "current", "load_ipython_extension"]
