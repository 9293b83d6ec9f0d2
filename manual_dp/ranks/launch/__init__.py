"""Run a function in several processes, one a rank, get its values back; never hang.

    launch      run_ranks, and what ranks/live needs of it: jobs, wardens, checks
    nursery     the process that forks the ranks, and the wardens that watch them
    rank        what a rank does between its fork and its end
    verdict     RankError: what went wrong first, and in which rank
    processes   exit codes, states, descendants, and the end of processes

A call starts no Python: one process, the nursery, has imported torch once, and forks
the ranks when they are asked for (nursery.py). So ranks start in tenths of a second.
They meet through a file in a private folder and talk over loopback alone: no other
machine can reach them.
"""

from manual_dp.ranks.launch.launch import run_ranks
from manual_dp.ranks.launch.verdict import RankError

__all__ = ["run_ranks", "RankError"]
