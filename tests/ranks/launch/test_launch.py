"""What run_ranks promises to its caller: values back, and refusals in words."""

import gc
import math
import os
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch import launch
from tests.support.launches import SOON, error_of, nursery

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# values there and back


def test_results_come_in_the_order_of_ranks():
    def who():
        names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
        return [dist.get_rank(), dist.get_world_size(), *map(os.environ.get, names)]

    assert run_ranks(who, 3) == [
        [rank, 3, str(rank), str(rank), "3"] for rank in range(3)
    ]


def test_every_rank_gets_a_copy_of_the_arguments():
    def change(tensor, words):
        tensor += dist.get_rank() + 1
        words.append("more")
        return tensor.tolist(), words

    tensor, words = torch.zeros(2), ["some"]
    assert run_ranks(change, 2, tensor, words) == [
        ([1, 1], ["some", "more"]),
        ([2, 2], ["some", "more"]),
    ]
    assert tensor.tolist() == [0, 0] and words == ["some"]


def test_values_of_every_kind_come_back():
    class Pair:
        def __init__(self, left):
            self.left = left

    def values(pair):
        rank = dist.get_rank()
        return pair, Pair(rank), lambda x: x + rank, torch.arange(3.0) + rank

    for rank, result in enumerate(run_ranks(values, 2, Pair("here"))):
        pair, own, closure, tensor = result
        assert isinstance(pair, Pair) and pair.left == "here"
        assert isinstance(own, Pair) and own.left == rank
        assert closure(10) == 10 + rank
        assert tensor.tolist() == [rank, rank + 1, rank + 2]


def test_fifty_megabytes_come_back():
    def many():
        return torch.full((50 * 2**20,), dist.get_rank() + 1, dtype=torch.uint8)

    [result] = run_ranks(many, 1, timeout=SOON)
    assert len(result) == 50 * 2**20 and (result == 1).all()


def test_the_folder_may_have_any_name(tmp_path, monkeypatch):
    folder = tmp_path / "a b#c?d%20é'"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert run_ranks(dist.get_rank, 2, timeout=SOON) == [0, 1]
    assert list(folder.iterdir()) == [] and list(tmp_path.iterdir()) == [folder]


def test_a_script_needs_no_main_guard_and_leaves_nothing(start_python, monkeypatch):
    # nor do warnings stop it that are errors, in the nursery too
    # 5 s: only here does a Python start that has imported nothing yet
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    process, folder = start_python("""
import sys
import manual_dp
print([name for name in sys.modules if name.startswith(("cloudpickle", "manual_dp.ranks"))])
import psutil
import torch.distributed as dist
from manual_dp.ranks import Ranks, run_ranks
print("cloudpickle" in sys.modules, psutil.Process().children(), flush=True)
def helper(): return dist.get_rank() + 1
def rank_function(): print("ran"); return helper()
print(run_ranks(rank_function, 2))
ranks = Ranks(2)
print(*ranks.run("import os; os.getpid()"))
""")
    out, err = process.communicate(timeout=240)
    *said, pids = out.splitlines()
    assert (process.returncode, err) == (0, "")
    assert said == ["[]", "False []", "rank 0: ran", "rank 1: ran", "[1, 2]"]
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.split())
    assert list(folder.glob("manual_dp-*")) == []


@pytest.mark.parametrize(
    "function, argument, text",
    [
        (int, "not a number", "ValueError: invalid literal"),
        (sys.exit, 5, "SystemExit: 5"),
    ],
)
def test_a_result_that_cannot_be_read_is_named(function, argument, text):
    class Bad:
        def __reduce__(self):
            return function, (argument,)

    error = error_of(lambda: Bad() if dist.get_rank() else 0)
    assert str(error).startswith(f"rank 1's result cannot be read here: {text}")
    assert (error.kind, error.rank) == ("unreadable", 1)


def test_a_ranks_error_is_raised_where_nothing_can_be_printed(monkeypatch):
    class Full:
        def write(self, text):
            raise OSError("disk full")

    def fail():
        print("a word")
        raise ValueError("me")

    monkeypatch.setattr(sys, "stdout", Full())
    error = error_of(fail)
    monkeypatch.undo()
    assert "raised ValueError: me" in str(error)
    assert str(error.__context__) == "disk full"


# four at once, and after a death


def test_launches_from_threads_do_not_meet():
    def total(number):
        tensor = torch.tensor([number])
        dist.all_reduce(tensor)
        return tensor.item()

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda i: run_ranks(total, 2, 10**i, timeout=60), range(4))
        assert list(results) == [[2 * 10**i] * 2 for i in range(4)]


def test_a_signal_that_interrupts_a_launch_may_launch_ranks_itself():
    nursery = launch._nursery(os.getpid())
    with nursery.lock:  # where the signal comes
        assert nursery.lock.acquire(timeout=5)
        nursery.lock.release()
        assert run_ranks(lambda: 7, 1) == [7]


def test_a_launch_goes_on_when_the_nursery_is_killed_and_the_next_gets_a_new_one():
    def kill():
        if dist.get_rank() == 0:
            with open(f"/proc/{os.getppid()}/stat") as file:
                os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        dist.barrier()
        return dist.get_rank()

    run_ranks(int, 1)
    before = nursery()
    assert run_ranks(kill, 2) == [0, 1]
    assert run_ranks(dist.get_rank, 2) == [
        0,
        1,
    ]  # at once: it may not have been noticed
    assert before.poll() == -signal.SIGKILL and nursery().pid != before.pid


def test_a_copy_of_the_process_has_a_nursery_of_its_own():
    run_ranks(int, 1)
    before = nursery().pid
    assert before in [child.pid for child in psutil.Process().children()]
    copy = os.fork()
    if copy == 0:
        code = 1
        try:
            mine = launch._nursery(os.getpid())
            code = 0 if mine.process is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert run_ranks(int, 1) == [0] and nursery().pid == before


def test_a_fork_may_start_its_ranks_from_its_parents_nursery():
    lent = launch.lend_nursery()
    before = nursery().pid
    copy = os.fork()
    if copy == 0:
        code = 1
        try:
            launch.borrow_nursery(lent)
            started = run_ranks(dist.get_rank, 2) == [0, 1]
            code = 0 if started and nursery().pid == before else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert run_ranks(int, 1) == [0] and nursery().pid == before


def test_open_files_do_not_pile_up():
    def count():
        return len(os.listdir("/proc/self/fd"))

    run_ranks(int, 1)
    before = count()
    run_ranks(int, 2)
    error_of(lambda: os._exit(1))
    assert count() == before


# arguments that are refused, before any process is started


def test_what_cannot_be_sent_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(launch, "start_warden", None)
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match="function and args must be sent .* cannot pickle"
    ):
        run_ranks(lambda: lock, 2)


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"function": 3}, TypeError, "function must be callable, got int"),
        ({"world_size": 0}, ValueError, "from 1 to 256, got 0"),
        ({"world_size": 257}, ValueError, "from 1 to 256, got 257"),
        ({"world_size": True}, ValueError, "got True"),
        ({"world_size": 2.0}, ValueError, r"got 2\.0"),
        (
            {"timeout": 0},
            ValueError,
            r"timeout must be seconds from 0 to 10\*\*6, got 0",
        ),
        ({"timeout": math.nan}, ValueError, "got nan"),
        ({"timeout": True}, ValueError, "got True"),
        ({"timeout": "9"}, ValueError, "got '9'"),
        ({"timeout": 10**6 + 1}, ValueError, "got 1000001"),
        (
            {"backend": "mpi"},
            ValueError,
            "backend must be one of .*gloo.*nccl.*, got 'mpi'",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    monkeypatch, changes, error, text
):
    monkeypatch.setattr(launch, "start_warden", None)
    arguments = {"function": int, "world_size": 2, **changes}
    function, world_size = arguments.pop("function"), arguments.pop("world_size")
    with pytest.raises(error, match=text):
        run_ranks(function, world_size, **arguments)


def test_nccl_needs_a_gpu_for_each_rank(monkeypatch):
    monkeypatch.setattr(launch, "start_warden", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="a GPU for each rank: 2 ranks, 1 GPUs"):
        run_ranks(int, 2, backend="nccl")


def test_a_system_without_fork_is_refused(monkeypatch):
    monkeypatch.setattr(launch, "start_warden", None)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(OSError, match="ranks need fork"):
        run_ranks(int, 2)


def test_a_working_directory_that_was_deleted_is_refused_in_words(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(launch, "start_warden", None)
    with monkeypatch.context() as patch:
        (tmp_path / "gone").mkdir()
        patch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(
            FileNotFoundError,
            match="the working directory was deleted; "
            "call os.chdir with one that exists",
        ):
            run_ranks(int, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_ranks_sum_on_their_gpus():
    def total():
        tensor = torch.ones(3, device="cuda")
        dist.all_reduce(tensor)
        return tensor.tolist(), tensor.device.index

    count = torch.cuda.device_count()
    assert run_ranks(total, count, backend="nccl") == [
        ([count] * 3, rank) for rank in range(count)
    ]


def test_a_nursery_that_cannot_start_says_why(monkeypatch):
    launch.NURSERIES.clear()
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    error = error_of(int)
    assert "the process that forks the ranks does not start" in str(error)
    assert "No module named" in error.details
    assert (error.kind, error.rank) == ("lost", None)


def test_garbage_that_is_collected_in_a_rank_is_the_ranks_own():
    [frozen] = run_ranks(gc.get_freeze_count, 1)
    assert frozen > 10_000  # what the nursery has imported
