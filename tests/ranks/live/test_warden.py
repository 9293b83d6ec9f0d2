"""Faults in a cell: one named error each, in time; what goes on; nothing is left.

launch/test_nursery.py shows that ranks end with the process that started them.
"""

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from manual_dp.ranks import RankError, Ranks
from tests.support.launches import LATE, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")
HANG = (
    4  # seconds of a cell that hangs: enough for all ranks to come to where they wait
)
NEW = "New ranks: 0 to 1 (gloo). The names of earlier cells are gone.\n"


def error_of(ranks, code, some=None, timeout=LATE):
    """Return the RankError of a cell, which comes in time."""
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(code, some, timeout)
    assert time.monotonic() - start < timeout + LATE
    return caught.value


def ended(pid):
    """Return whether a process that nobody has reaped yet has ended, threads and all."""
    return (
        psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        and len(os.listdir(f"/proc/{pid}/task")) == 1
    )


# a rank raises


def test_a_cell_that_raises_names_rank_line_and_text_and_the_ranks_live_on():
    with Ranks(3) as ranks:
        ranks.run("x = rank")
        error = error_of(ranks, "x += 10\nif rank == 1:\n    raise ValueError('boom')")
        place = "run 2, line 3: raise ValueError('boom')"
        assert str(error) == f"rank 1 raised ValueError: boom ({place})"
        assert (error.kind, error.rank, error.where) == ("raised", 1, place)
        assert error.cause == "ValueError"
        assert error.details == (
            "Traceback (most recent call last):\n"
            '  File "run 2", line 3, in <module>\n'
            "    raise ValueError('boom')\n"
            "ValueError: boom\n"
        )
        assert ranks["x"] == [10, 11, 12]
        assert ranks.run("dist.barrier()\nrank") == [
            0,
            1,
            2,
        ]  # in step with one another


def test_the_innermost_line_of_a_cell_is_named():
    with Ranks(2) as ranks:
        ranks.run("def f(x):\n    return torch.ones(2) @ x")
        error = error_of(ranks, "f(1)\nf(torch.ones(rank + 2))")
        assert error.where == "run 1, line 2: return torch.ones(2) @ x"
        assert "TypeError" in str(error)
        assert error_of(ranks, "import json\njson.loads('')").where == (
            "run 3, line 2: json.loads('')"
        )


def test_a_rank_that_waits_for_one_that_raised_is_ended_before_time_is_up(capsys):
    with Ranks(2) as ranks:
        start = time.monotonic()
        error = error_of(
            ranks,
            "x = torch.ones(1)\nif rank == 1:\n    raise KeyError(7)\n"
            "dist.all_reduce(x)",
            timeout=100,
        )
        assert time.monotonic() - start < 50
        assert str(error) == (
            "rank 1 raised KeyError: 7 (run 1, line 3: raise KeyError(7))"
            "\nrank 0 waited in all_reduce "
            "(run 1, line 4: dist.all_reduce(x))"
        )
        assert (error.kind, error.rank) == ("raised", 1)
        assert ranks.run("'x' in globals()") == [False, False]
    assert capsys.readouterr().out == NEW


def test_a_rank_that_works_on_while_another_has_raised_may_finish(capsys):
    with Ranks(2) as ranks:
        error = error_of(
            ranks,
            "import time\nif rank == 1:\n    raise KeyError(7)\ntime.sleep(3)\nx = 1",
        )
        assert (
            str(error) == "rank 1 raised KeyError: 7 (run 1, line 3: raise KeyError(7))"
        )
        assert ranks.run("'x' in globals()") == [True, False]
    assert capsys.readouterr().out == ""


# a rank dies


@pytest.mark.parametrize(
    "code, kind, how",
    [
        (
            "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)",
            "killed",
            "was killed by SIGKILL",
        ),
        ("import sys\nif rank == 1:\n    sys.exit(3)", "exited", "exited with code 3"),
        (
            "import os\nif rank == 1:\n    os._exit(0)",
            "exited",
            "exited without returning a result (exit code 0)",
        ),
    ],
    ids=["killed", "exit", "_exit"],
)
def test_a_rank_that_dies_is_named_and_all_are_replaced(code, kind, how, capsys):
    with Ranks(2) as ranks:
        pids = ranks.run("import os\nos.getpid()")
        error = error_of(ranks, code + "\ndist.barrier()")
        assert (str(error), error.kind, error.rank) == (f"rank 1 {how}", kind, 1)
        assert until(lambda: not any(map(psutil.pid_exists, pids)))
        assert capsys.readouterr().out == ""
        assert ranks.run("'os' in globals(), rank") == [(False, 0), (False, 1)]
        assert capsys.readouterr().out == NEW
        assert ranks.run("dist.barrier()\nrank") == [0, 1]
        assert capsys.readouterr().out == ""


def test_a_rank_that_dies_between_cells_is_an_error_of_the_next():
    with Ranks(3) as ranks:
        pids = ranks.run("import os\nos.getpid()")
        os.kill(pids[2], signal.SIGKILL)
        assert until(lambda: ended(pids[2]))
        error = error_of(ranks, "x = 1", [0, 1])
        assert (str(error), error.rank) == ("rank 2 was killed by SIGKILL", 2)
        assert ranks.run("rank") == [0, 1, 2]


def test_an_error_that_cannot_be_written_down_is_told_all_the_same():
    with Ranks(1) as ranks:
        error = error_of(
            ranks,
            "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n"
            "raise ValueError('mine')",
        )
        assert re.fullmatch(
            r"rank 0 exited with code 1: its error could not be written down "
            r"\(OSError: \[Errno 24\] Too many open files: '/.*error-0'\): "
            "ValueError: mine",
            str(error),
        )
        assert (error.kind, error.rank) == ("exited", 0)
        assert ranks.run("rank") == [0]


# time is up

STUCK = {
    "each waits for the other": (
        "x = torch.ones(1)\ndist.recv(x, 1 - rank)",
        0,
        [
            "ranks 0 and 1 still waited",
            "rank 0 waited in recv (run 1, line 2: dist.recv(x, 1 - rank))",
            "rank 1 waited in recv (run 1, line 2: dist.recv(x, 1 - rank))",
        ],
    ),
    "a call is skipped": (
        "def f():\n    dist.barrier()\nif rank == 1:\n    f()",
        1,
        [
            "rank 1 still waited",
            "rank 1 waited in barrier (run 1, line 2: dist.barrier())",
            "rank 0 had finished",
        ],
    ),
    "work that nobody answers": (
        "x = torch.ones(1)\nif rank == 0:\n    work = dist.irecv(x, 1)\n    work.wait()",
        0,
        [
            "rank 0 still waited",
            "rank 0 waited in wait (run 1, line 4: work.wait())",
            "rank 1 had finished",
        ],
    ),
    "another call": (
        "x = torch.ones(1)\nif rank:\n    dist.all_reduce(x)\nelse:\n"
        "    dist.broadcast(x, 1)",
        0,
        [
            "ranks 0 and 1 still waited",
            "rank 0 waited in broadcast (run 1, line 5: dist.broadcast(x, 1))",
            "rank 1 waited in all_reduce (run 1, line 3: dist.all_reduce(x))",
        ],
    ),
    "sleep": (
        "import time\nif rank == 1:\n    time.sleep(500)\ndist.barrier()",
        1,
        [
            "rank 1 had not finished",
            "rank 0 waited in barrier (run 1, line 4: dist.barrier())",
            "rank 1 had not finished (run 1, line 3: time.sleep(500))",
        ],
    ),
    "an endless loop": (
        "while rank == 1: pass",
        1,
        [
            "rank 1 had not finished",
            "rank 1 was running (run 1, line 1: while rank == 1: pass)",
            "rank 0 had finished",
        ],
    ),
    "stopped": (
        "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)",
        1,
        ["rank 1 had not finished", "rank 1 was stopped", "rank 0 had finished"],
    ),
    "a print without end": (
        "while rank == 1: print('x' * 1000)",
        1,
        [
            "rank 1 had not finished",
            "rank 1 was running (run 1, line 1: while rank == 1: print('x' * 1000))",
            "rank 0 had finished",
        ],
    ),
    "a group that nobody joins": (
        "dist.destroy_process_group()\nif rank == 1:\n    dist.init_process_group("
        "'gloo',\n        store=dist.HashStore(), rank=1, world_size=2)",
        1,
        None,
    ),
}


@pytest.fixture(scope="module")
def hung():
    """Run all that hangs at once; return (error, seconds) of each."""

    def run(code):
        with Ranks(2) as ranks:
            start = time.monotonic()
            try:
                ranks.run(code, timeout=HANG)
            except RankError as error:
                return error, time.monotonic() - start
            finally:
                assert ranks.run("rank") == [0, 1]

    with ThreadPoolExecutor(len(STUCK)) as pool:
        return dict(zip(STUCK, pool.map(run, [code for code, *_ in STUCK.values()])))


@pytest.mark.parametrize("name", STUCK)
def test_a_hang_ends_in_time_and_says_where_every_rank_is(hung, name):
    _, rank, lines = STUCK[name]
    error, seconds = hung[name]
    assert HANG <= seconds < HANG + LATE
    assert (error.kind, error.rank) == ("hung", rank)
    if lines:
        said, *places = str(error).splitlines()
        assert said == f"time was up after {HANG} s: {lines[0]}"
        if "running" not in lines[1]:  # on a busy machine it may sleep in the write
            assert places == lines[1:]
        assert any(place.startswith(f"rank {rank} ") for place in places)


def test_a_rank_that_was_not_asked_is_named_where_others_wait_for_it():
    with Ranks(3) as ranks:
        error = error_of(ranks, "dist.barrier()", [0, 2], timeout=HANG)
        assert str(error).splitlines() == [
            f"time was up after {HANG} s: ranks 0 and 2 still waited",
            "rank 0 waited in barrier (run 1, line 1: dist.barrier())",
            "rank 2 waited in barrier (run 1, line 1: dist.barrier())",
            "rank 1 had no cell to run",
        ]


# odd cells

ODD_CELLS = [
    "import os\nos.fork()\nrank",  # the copies end
    "import threading, time\nt = threading.Thread(target=time.sleep, args=(50,))\n"
    "t.start()\nrank",
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nrank",
    "import os\nos.setsid() if os.getpid() != os.getsid(0) else None\nrank",
    "dist.destroy_process_group()\nrank",
    "import sys\nsys.stdout.close()\nrank",
]


def test_ranks_live_on_after_odd_cells():
    with Ranks(2) as ranks:
        for code in ODD_CELLS:
            assert ranks.run(code) == ranks.run("rank") == [0, 1], code


def test_100_megabytes_of_print_are_cut(capsys):
    with Ranks(2) as ranks:
        ranks.run(
            "if rank == 1:\n    for _ in range(1000):\n        print('x' * 10**5)"
        )
        ranks.run("print('next')", [1])
    out = capsys.readouterr().out
    assert len(out) < 2e6 and " bytes left out]\n" in out
    assert out.endswith("rank 1: next\n")


def test_a_value_whose_text_raises_is_an_error_of_the_cell():
    with Ranks(1) as ranks:
        error = error_of(
            ranks,
            "class Odd:\n    def __repr__(self):\n"
            "        raise OSError('no text')\n"
            "    __reduce__ = __repr__\nOdd()",
        )
        assert str(error).startswith("rank 0 raised OSError: no text (run 1, line 3")


# this process


def test_an_interrupt_ends_the_ranks_at_once(interruptible, capsys):
    with Ranks(2) as ranks:
        pids = ranks.run("import os\nos.getpid()")
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ranks.run("while True: pass", timeout=300)
        assert time.monotonic() - start < 1 + LATE
        assert not any(map(psutil.pid_exists, pids))
        assert ranks.run("rank") == [0, 1]
    assert capsys.readouterr().out == NEW
