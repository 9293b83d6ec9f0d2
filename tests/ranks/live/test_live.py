"""Ranks that stay: names live on, values come back, and nothing is left at the end."""

import gc
import os
import pickle
import statistics
import time

import psutil
import pytest
import torch

from manual_dp.ranks import RankError, Ranks
from manual_dp.ranks.live import current
from tests.support.launches import LATE, alive, until

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_names_functions_and_classes_live_on_from_cell_to_cell():
    with Ranks(3) as ranks:
        assert ranks.run("import math\nx = math.sqrt(4 * rank ** 2)") == [None] * 3
        ranks.run("def twice(x):\n    return 2 * x")
        ranks.run("class Box:\n    def __init__(self, x):\n        self.x = twice(x)")
        assert ranks.run("box = Box(x)\nbox.x") == [0, 4, 8]
        assert [box.x for box in ranks["box"]] == [0, 4, 8]
        assert ranks["x"] == [0, 2, 4]


def test_every_rank_knows_its_number_and_the_group_is_open():
    with Ranks(3) as ranks:
        assert ranks.run(
            "(rank, world_size, dist.get_rank(), dist.get_world_size())"
        ) == [(rank, 3, rank, 3) for rank in range(3)]
        total = ranks.run(
            "x = torch.tensor([rank + 0.5], dtype=torch.float64)\ndist.all_reduce(x)\nx"
        )
        assert all(
            torch.equal(x, torch.tensor([4.5], dtype=torch.float64)) for x in total
        )


def test_one_rank_is_enough():
    with Ranks(1) as ranks:
        assert str(ranks) == "1 rank runs: 0 (gloo)."
        assert ranks.run("dist.barrier()\nrank") == [0]


def test_without_a_group_there_is_a_file_to_meet_in():
    with Ranks(2, group=False) as ranks:
        assert str(ranks) == "2 ranks run: 0 to 1 (no group yet)."
        assert (
            ranks.run("import os\nos.path.getsize(store), dist.is_initialized()")
            == [(0, False)] * 2
        )
        ranks.run(
            "dist.init_process_group('gloo', rank=rank, world_size=world_size,\n"
            "    store=dist.FileStore(store, world_size))"
        )
        assert ranks.run(
            "x = torch.tensor(rank + 1)\ndist.all_reduce(x)\nx.item()"
        ) == [3, 3]
    with Ranks(2) as ranks, pytest.raises(RankError, match="NameError.*'store'"):
        ranks.run("store")


def test_a_cell_can_be_for_some_ranks():
    with Ranks(3) as ranks:
        assert ranks.run("x = rank\nx", [2, 0]) == [0, 2]
        assert ranks.run("'x' in globals()") == [True, False, True]
        assert ranks.run("rank", [1]) == [1]


def test_what_the_ranks_print_is_printed_in_their_order(capsys):
    with Ranks(3) as ranks:
        ranks.run(
            "import time\ntime.sleep(0.1 * (2 - rank))\nprint('one')\nprint('two')"
        )
        ranks.run("import sys\nprint('three', file=sys.stderr)", [1])
        ranks.run("")
    out, err = capsys.readouterr()
    assert out == "".join(f"rank {r}: one\nrank {r}: two\n" for r in range(3))
    assert err == "rank 1: three\n"


def test_a_value_that_cannot_be_sent_comes_as_its_text_or_is_an_error_here(capsys):
    with Ranks(1) as ranks:
        assert ranks.run("import threading\nthreading.Lock()") == [
            "<unlocked _thread.lock object>"
        ]
        ranks.run("class Odd:\n    def __reduce__(self):\n        return int, ('odd',)")
        with pytest.raises(RankError, match="rank 0's result cannot be read") as caught:
            ranks.run("Odd()")
        assert caught.value.kind == "unreadable"
        assert ranks.run("rank") == [0]
    assert capsys.readouterr().out == ""


def test_push_gives_every_rank_its_own_copy():
    X = torch.rand(3, dtype=torch.float64)
    kept, scale = X.clone(), 2

    def scaled(x):
        return scale * x

    with Ranks(2) as ranks:
        ranks.push(X=X, scaled=scaled)
        ranks.run("X += rank + 1")
        assert torch.equal(X, kept)
        first, second = ranks.run("scaled(X)")
        assert torch.equal(first, 2 * (kept + 1)) and torch.equal(
            second, 2 * (kept + 2)
        )
        with pytest.raises(TypeError, match="the values cannot be sent.*_thread.lock"):
            ranks.push(lock=ranks._one_at_a_time)


def test_ranks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="world_size must be .* from 1 to 256, got 0"):
        Ranks(0)


def test_only_ranks_that_there_are_can_be_asked():
    with Ranks(2) as running:
        for ranks in [], [2], [0, 0]:
            with pytest.raises(
                ValueError, match="ranks must be some of 0 to 1, each once"
            ):
                running.run("rank", ranks)
        with pytest.raises(ValueError, match="timeout must be seconds"):
            running.run("rank", timeout=0)
        with pytest.raises(KeyError, match="a name of the ranks"):
            running["rank + 1"]
        assert running.run("rank") == [0, 1]


def test_a_syntax_error_is_told_before_anything_is_sent():
    with Ranks(2) as ranks:
        ranks.run("x = 1")
        with pytest.raises(SyntaxError, match=r"invalid syntax \(run 2, line 2\)"):
            ranks.run("x = 2\nx = = 3")
        assert ranks["x"] == [1, 1]


def test_closed_ranks_say_so_and_can_be_closed_again():
    ranks = Ranks(2)
    ranks.close()
    ranks.close()
    assert until(lambda: not alive())
    with pytest.raises(RankError, match="these ranks are closed"):
        ranks.run("rank")


def test_ranks_that_nobody_holds_any_more_are_gone():
    ranks = Ranks(2)
    del ranks
    gc.collect()
    assert until(lambda: not alive())


def test_what_the_ranks_leave_running_is_gone_when_they_are_closed():
    with Ranks(2) as ranks:
        pids = ranks.run("import subprocess\nsubprocess.Popen(['sleep', '50']).pid")
        assert all(map(psutil.pid_exists, pids))  # it is there for the next cell
        ranks.run("subprocess.run(['sh', '-c', '(setsid sleep 50 &)'])")
    assert not any(map(psutil.pid_exists, pids))
    assert until(lambda: not alive())  # a warden hangs up before it ends


def test_a_forked_copy_of_this_process_leaves_the_ranks_alone():
    with Ranks(2) as ranks:
        ranks.run("x = rank")
        pid = os.fork()
        if pid == 0:  # it ends as a Python does
            code = 1
            try:
                ranks._end_warden()
                code = 0 if ranks._line is None else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert ranks["x"] == [0, 1]


def test_current_says_when_no_ranks_run(monkeypatch):
    monkeypatch.setattr(Ranks, "last", None)
    with pytest.raises(RuntimeError, match="no ranks run: start them with %ranks 4"):
        current()
    monkeypatch.setattr(Ranks, "last", "some")
    assert current() == "some"


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_ranks_start_and_answer_at_once():
    # bounds for a quiet machine: 0.3 s and 20 ms; here there is room for a busy one
    start = time.perf_counter()
    with Ranks(4) as ranks:
        assert time.perf_counter() - start < LATE
        ranks.run("")
        assert (
            statistics.median(seconds(lambda: ranks.run("x = 1")) for _ in range(30))
            < 0.5
        )


def test_200_cells_leave_no_more_memory_files_or_threads():
    # 4 s: what a cell leaves shows only after many
    def state(ranks, folder):
        here = psutil.Process()
        processes = [here, *map(psutil.Process, ranks.run("os.getpid()"))]
        return (
            [process.memory_info().rss for process in processes],
            [process.num_fds() for process in processes],
            len(os.listdir(folder)),
            here.num_threads(),
        )

    with Ranks(2) as ranks:
        folder = ranks.run(
            "import os\nos.path.dirname(os.readlink('/proc/self/fd/1'))"
        )[0]
        code = (
            "x = torch.ones(100_000) * rank\ndist.all_reduce(x)\nprint('.' * 1000)\nx"
        )

        def cells(count):
            for _ in range(count):
                ranks.run(code)
                with pytest.raises(RankError):
                    ranks.run("raise ValueError(rank)")

        cells(25)  # what is made once is made
        memory, *before = state(ranks, folder)
        cells(100)
        memory_after, *after = state(ranks, folder)
        assert after == before
        assert all(now - then < 8e6 for now, then in zip(memory_after, memory))


def test_an_error_goes_through_pickle():
    with Ranks(1) as ranks, pytest.raises(RankError) as caught:
        ranks.run("raise KeyError('a')")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.kind, copy.rank, copy.where) == (
        "rank 0 raised KeyError: 'a' (run 1, line 1: raise KeyError('a'))",
        "raised",
        0,
        "run 1, line 1: raise KeyError('a')",
    )
