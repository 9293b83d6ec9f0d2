"""What run_ranks promises: values back, one named error in time, nothing left behind."""

import contextlib
import functools
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
import torch.distributed as dist
from nbclient import NotebookClient

import manual_dp
from manual_dp.ranks import RankError, launch, run_ranks
from manual_dp.ranks.launch.verdict import judge

ROOT = str(Path(manual_dp.__file__).parents[1])
MARK = "MANUAL_DP_TEST_LAUNCH"  # in the environment of all that these tests start
SOON = 20  # seconds: a deadline that no test here should need


def nursery():
    return launch._nursery(os.getpid()).process


def alive():
    """Return the processes that these tests have started, without the nursery."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = process.environ().get(MARK) == os.environ[MARK]
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    idle = {os.getpid(), nursery() and nursery().pid}
    return [process for process in found if process.pid not in idle]


def until(condition, seconds):
    """Wait until condition() holds; return whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return holds


@pytest.fixture(autouse=True, scope="module")
def one_nursery_for_this_file():
    launch._nursery.cache_clear()
    os.environ[MARK] = f"{os.getpid()} {time.time()}"
    run_ranks(int, 1)
    yield
    launch._nursery.cache_clear()
    assert until(lambda: alive() == [], 10)
    del os.environ[MARK]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    until(lambda: alive() == [], 5)
    assert alive() == []
    assert list(tmp_path.rglob("manual_dp-*")) == []


def error_of(function, *args, world_size=2, timeout=SOON, late=10):
    """Return the RankError of a launch, which comes in time."""
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_ranks(function, world_size, *args, timeout=timeout)
    assert time.monotonic() - start < timeout + late
    return caught.value


@pytest.fixture
def start_python(tmp_path):
    """Return a function that starts a script in a folder of its own, and kill it later."""
    started = []

    def start(script, **options):
        folder = tmp_path / f"caller_{len(started)}"
        folder.mkdir()
        (folder / "script.py").write_text(script)
        started.append(subprocess.Popen(
            [sys.executable, "script.py"], cwd=folder, text=True,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": ROOT},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}))
        return started[-1], folder

    yield start
    for process in started:
        process.kill()
        process.communicate()


# values there and back

@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_results_come_in_the_order_of_ranks(world_size):
    def who():
        names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
        return [dist.get_rank(), dist.get_world_size(), *map(os.environ.get, names)]

    assert run_ranks(who, world_size) == [
        [rank, world_size, str(rank), str(rank), str(world_size)]
        for rank in range(world_size)]


def test_ranks_talk_to_one_another():
    def total(tensor):
        tensor = tensor * 10**dist.get_rank()
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert run_ranks(total, 4, torch.tensor([1, 2])) == [[1111, 2222]] * 4


def test_every_rank_gets_a_copy_of_the_arguments():
    def change(tensor, words):
        tensor += dist.get_rank() + 1
        words.append("more")
        return tensor.tolist(), words

    tensor, words = torch.zeros(2), ["some"]
    assert run_ranks(change, 2, tensor, words) == [([1, 1], ["some", "more"]),
                                                   ([2, 2], ["some", "more"])]
    assert tensor.tolist() == [0, 0] and words == ["some"]


def test_values_of_every_kind_come_back():
    class Pair:
        def __init__(self, left):
            self.left = left

    def values(pair):
        rank = dist.get_rank()
        return {"none": None, "tensor": torch.arange(3.0) + rank, "pair": pair,
                "own": Pair(rank), "closure": lambda x: x + rank, "nan": math.nan}

    for rank, result in enumerate(run_ranks(values, 2, Pair("here"))):
        assert result["none"] is None and math.isnan(result["nan"])
        assert result["tensor"].tolist() == [rank, rank + 1, rank + 2]
        assert isinstance(result["pair"], Pair) and result["pair"].left == "here"
        assert isinstance(result["own"], Pair) and result["own"].left == rank
        assert result["closure"](10) == 10 + rank


@pytest.mark.parametrize("function, args, value", [
    (int, (), 0), (functools.partial(pow, 2), (5,), 32), ("a-b".split, ("-",), ["a", "b"])])
def test_whatever_can_be_called_is_a_function(function, args, value):
    assert run_ranks(function, 2, *args) == [value] * 2


def test_fifty_megabytes_come_back():
    def many():
        return torch.full((50 * 2**20,), dist.get_rank() + 1, dtype=torch.uint8)

    [result] = run_ranks(many, 1, timeout=SOON)
    assert len(result) == 50 * 2**20 and (result == 1).all()


def test_a_rank_has_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")

    def threads():
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert run_ranks(threads, 2) == [(1, "1")] * 2


def test_ranks_see_the_surroundings_of_the_moment(tmp_path, monkeypatch):
    def surroundings():
        import moment
        return os.environ.get("MOMENT"), os.getcwd(), moment.word, tempfile.gettempdir()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "modules"), *sys.path])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "modules").mkdir()
    for word in "first", "second":  # the module is read anew, too
        (tmp_path / "modules" / "moment.py").write_text(f"word = {word!r} + ''")
        monkeypatch.setenv("MOMENT", word)
        assert run_ranks(surroundings, 1) == [(word, str(tmp_path), word, str(tmp_path))]
    monkeypatch.delenv("MOMENT")
    assert run_ranks(surroundings, 1)[0][0] is None


def test_every_rank_draws_numbers_of_its_own():
    def draw():
        import random

        import numpy
        return random.random(), numpy.random.rand()

    draws = run_ranks(draw, 2) + run_ranks(draw, 2)
    assert len({number for pair in draws for number in pair}) == 8


def test_the_folder_may_have_any_name(tmp_path, monkeypatch):
    folder = tmp_path / "a b#c?d%20é'"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert run_ranks(dist.get_rank, 2, timeout=SOON) == [0, 1]
    assert list(folder.iterdir()) == [] and list(tmp_path.iterdir()) == [folder]


def test_functions_of_a_notebook_are_sent_and_shown_and_can_be_interrupted(tmp_path):
    cells = ["""
import time
import torch.distributed as dist
from manual_dp.ranks import RankError, run_ranks
def helper(x):
    if x > 1:
        raise ValueError(f"{x} is too much")  # line of the helper
    return x * 10
def rank_function(x):
    print("x is", x)
    return helper(x + dist.get_rank())  # line of the function
""", "run_ranks(rank_function, 2, 0)", """
try:
    run_ranks(rank_function, 2, 1)
except RankError as error:
    print(error, error.rank, *error.__notes__, sep=" / ")
""", """
try:
    run_ranks(time.sleep, 2, 50)  # takes too long
except KeyboardInterrupt:
    print("interrupted")
""", "run_ranks(dist.get_rank, 2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(notebook, timeout_func=lambda cell: 1 if "too long" in cell.source else 60,
                   interrupt_on_timeout=True, shutdown_kernel="immediate",
                   resources={"metadata": {"path": ROOT}}).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [output.get("text") or output.data["text/plain"] for output in outputs[1]] == [
        "rank 0: x is 0\nrank 1: x is 0\n", "[0, 10]"]
    text = outputs[2][-1].text
    assert "rank 1 raised ValueError: 2 is too much / 1 / Traceback" in text
    assert "line of the helper" in text and "line of the function" in text
    assert outputs[3][0].text == "interrupted\n"
    assert outputs[4][0].data["text/plain"] == "[0, 1]"


def test_a_script_needs_no_main_guard_and_its_imports_start_nothing(start_python, monkeypatch):
    # nor do warnings stop it that are errors, in the nursery too
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    process, _ = start_python("""
import sys
import manual_dp
print([name for name in sys.modules if name.startswith(("cloudpickle", "manual_dp.ranks"))])
import psutil
import torch.distributed as dist
from manual_dp.ranks import run_ranks
print("cloudpickle" in sys.modules, psutil.Process().children(), flush=True)
def helper(): return dist.get_rank() + 1
def rank_function(): print("ran"); return helper()
print(run_ranks(rank_function, 2))
""")
    assert process.communicate(timeout=60) == (
        "[]\nFalse []\nrank 0: ran\nrank 1: ran\n[1, 2]\n", "")
    assert process.returncode == 0


# faults: each becomes one RankError, with the rank and the cause

def test_an_exception_is_named_with_its_rank_and_line():
    def fail():
        if dist.get_rank() == 1:
            raise ValueError("no")  # the line
        dist.barrier()

    error = error_of(fail)
    assert str(error) == "rank 1 raised ValueError: no" and error.rank == 1
    assert (error.kind, error.cause, error.where) == ("raised", "ValueError", None)
    assert 'raise ValueError("no")  # the line' in error.details
    assert error.__notes__ == [error.details]
    assert "nursery" not in error.details and "rank.py" not in error.details


@pytest.mark.parametrize("faulty", [0, 1, 2])
def test_an_exception_is_named_and_not_what_the_waiting_ranks_say(faulty):
    def fail():
        if dist.get_rank() == faulty:
            raise KeyError("cause")
        dist.all_reduce(torch.ones(1))

    error = error_of(fail, world_size=3)
    assert str(error) == f"rank {faulty} raised KeyError: 'cause'" and error.rank == faulty


@pytest.mark.parametrize("number, name", [
    (signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGTERM, "SIGTERM"),
    (40, "signal 40")])
def test_a_signal_is_named(number, name):
    def die():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), number)
        dist.barrier()

    error = error_of(die)
    assert str(error) == f"rank 1 was killed by {name}" and error.rank == 1
    assert (error.kind, error.cause) == ("killed", None)


def test_a_crash_says_where():
    def crash():
        import ctypes
        return ctypes.string_at(0)  # reads address 0

    error = error_of(crash, world_size=1)
    assert str(error) == "rank 0 was killed by SIGSEGV"
    assert re.search(r"Segmentation fault(.|\n)* in crash", error.details)


@pytest.mark.parametrize("how, code, text", [
    (os._exit, 0, "without returning a result (exit code 0)"),
    (sys.exit, 0, "without returning a result (exit code 0)"),
    (sys.exit, None, "without returning a result (exit code 0)"),
    (sys.exit, 256, "without returning a result (exit code 0)"),
    (sys.exit, 3, "with code 3"), (os._exit, 3, "with code 3"),
    (sys.exit, "the reason", "with code 1")])
def test_an_exit_without_a_result_is_an_error(how, code, text, capsys):
    def leave():
        if dist.get_rank() == 1:
            how(code)
        dist.barrier()

    error = error_of(leave)
    assert str(error) == f"rank 1 exited {text}" and error.rank == 1
    assert error.kind == "exited"
    said = "the reason\n" if code == "the reason" else ""  # as Python does
    assert error.details == said
    assert capsys.readouterr() == ("", said and f"rank 1: {said}")


def test_who_holds_up_the_others_is_named_at_the_deadline():
    def stop():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    def spin():
        while dist.get_rank() == 1:  # in torch.distributed, but not waiting
            pass
        dist.barrier()

    def sleep(wait):
        from torch.nn.parallel import DistributedDataParallel

        from manual_dp.ranks import ring_allreduce
        if wait == "backward":
            module = DistributedDataParallel(torch.nn.Linear(1, 1))
        if dist.get_rank() == 1:
            time.sleep(50)
        if wait == "async":
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        if wait == "ring":
            ring_allreduce(torch.ones(2))
        if wait == "backward":
            module(torch.ones(1, 1)).sum().backward()

    def ignore_signals():
        for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        while dist.get_rank() == 1:
            re.match("(a+)+b", "a" * 40)  # in C, for years
        dist.barrier()

    def no_message():
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), 1)
        dist.barrier()

    late = "rank {} had not finished after 3 s: it was "
    cases = [
        (stop, (), 1, late.format(1) + "stopped", None),
        (spin, (), 1, late.format(1) + r"in spin, line \d+", "spin"),
        (sleep, ("async",), 1, late.format(1) + r"in sleep, line \d+", "sleep"),
        (sleep, ("ring",), 1, late.format(1) + r"in sleep, line \d+", "sleep"),
        (sleep, ("backward",), 1, late.format(1) + r"in sleep, line \d+", "sleep"),
        (ignore_signals, (), 1, late.format(1) + r"in ignore_signals, line \d+",
         "ignore_signals"),
        (no_message, (), 0, "time was up after 3 s and every rank that was left was "
                            "waiting: rank 0 in recv, rank 1 in barrier", "recv"),
        (time.sleep, (50,), 0, late.format(0) + r"in .*; nor had rank 1", "_call")]
    with ThreadPoolExecutor(len(cases)) as pool:
        errors = pool.map(lambda case: error_of(case[0], *case[1], timeout=3), cases)
        for (_, _, rank, text, where), error in zip(cases, errors):
            assert re.fullmatch(text, str(error)) and error.rank == rank
            assert (error.kind, error.where) == ("hung", where)
            assert re.match(r"rank 0: (.|\n)*\nrank 1: ", error.details)  # where both were


def test_a_skipped_call_is_named():
    def skip():
        if dist.get_rank() == 1:
            return "early"
        dist.all_reduce(torch.ones(1))

    error = error_of(skip)
    assert str(error) == "rank 0 was still waiting in all_reduce when rank 1 had finished"
    assert (error.kind, error.rank, error.where) == ("left", 0, "all_reduce")


def test_tensors_of_other_sizes_end_in_an_error(capsys):
    def mismatch():
        dist.all_reduce(torch.ones(6 if dist.get_rank() else 4))

    error = error_of(mismatch)
    assert re.match(r"rank \d was killed by SIGABRT", str(error))
    assert "Received data size doesn't match expected size" in error.details
    capsys.readouterr()


def test_an_import_error_in_the_function_is_named(tmp_path, monkeypatch):
    def imports():
        import no_such_module  # noqa: F401

    error = error_of(imports)
    assert str(error) == ("rank 0 raised ModuleNotFoundError: "
                          "No module named 'no_such_module'")


def test_an_argument_that_does_not_unpickle_is_named():
    class Bad:
        def __reduce__(self):
            return int, ("not a number",)

    error = error_of(print, Bad())
    assert str(error).startswith("rank 0 raised ValueError: invalid literal for int()")


def test_a_result_that_cannot_be_sent_is_named():
    error = error_of(lambda: threading.Lock() if dist.get_rank() else 0)
    assert str(error).startswith("rank 1 raised TypeError: the result, a lock, "
                                 "cannot be sent back: TypeError: cannot pickle")


def test_a_result_that_cannot_be_read_is_named():
    class Bad:
        def __reduce__(self):
            return int, ("not a number",)

    error = error_of(lambda: Bad() if dist.get_rank() else 0)
    assert str(error).startswith("rank 1's result cannot be read here: ValueError")
    assert (error.kind, error.rank) == ("unreadable", 1)


def test_what_cannot_be_sent_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(launch, "_ask", None)
    lock = threading.Lock()
    with pytest.raises(TypeError, match="function and args must be sent .* cannot pickle"):
        run_ranks(lambda: lock, 2)
    with pytest.raises(TypeError, match="function and args must be sent"):
        run_ranks(print, 2, (number for number in range(3)))


@pytest.mark.parametrize("how", ["hidden", "wrapped", "replaced"])
def test_the_cause_is_named_whatever_the_others_make_of_it(how):
    def rank_function():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            if how == "wrapped":
                raise ValueError("something went wrong") from error
            if how == "replaced":
                raise ValueError("something went wrong") from None

    assert str(error_of(rank_function)) == "rank 1 was killed by SIGKILL"


@pytest.mark.parametrize("first", [0, 1])
def test_the_earlier_of_two_causes_is_named(first):
    def rank_function():
        if dist.get_rank() != first:
            time.sleep(0.15)
        raise (ValueError if dist.get_rank() == 0 else KeyError)("mine")

    assert error_of(rank_function).rank == first


def test_a_death_is_named_and_not_the_exception_that_comes_after_it():
    def rank_function():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.15)
        raise ValueError("later")

    assert str(error_of(rank_function)) == "rank 1 was killed by SIGKILL"


def test_a_death_is_named_and_not_the_abort_that_it_leads_to():
    def rank_function():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except RuntimeError:
            os.abort()

    assert str(error_of(rank_function)) == "rank 1 was killed by SIGKILL"


@pytest.mark.parametrize("ended, first", [
    ({0: (1.0, -signal.SIGABRT), 1: (1.02, -signal.SIGKILL)}, 1),
    ({0: (1.0, -signal.SIGABRT), 1: (1.02, 3)}, 1),
    ({0: (1.0, 3), 1: (1.0, -signal.SIGKILL)}, 1),
    ({0: (1.0, 3), 1: (1.02, -signal.SIGKILL)}, 0),
    ({0: (1.02, -signal.SIGABRT), 1: (1.0, -signal.SIGABRT)}, 1),
])
def test_an_abort_that_is_seen_first_may_follow_from_another_end(ended, first, tmp_path):
    job = {"world_size": 2, "timeout": 9}
    assert judge(str(tmp_path), job, ended, {})["error"]["rank"] == first


def test_of_ranks_that_all_meet_with_the_same_the_lowest_is_named():
    def fail(late):
        if dist.get_rank() == late:
            time.sleep(0.1)
        raise ValueError(dist.get_rank())

    for late in 0, 1, 2:
        assert str(error_of(fail, late, world_size=3)) == "rank 0 raised ValueError: 0"


def test_no_rank_begins_before_all_have_joined():
    def joined():  # a rank that left now would break off the others' connections
        folder = Path(os.readlink("/proc/self/fd/1")).parent
        dist.destroy_process_group()
        return len(list(folder.glob("joined-*")))

    for _ in range(5):
        assert run_ranks(joined, 4) == [4] * 4


def test_words_that_gloo_uses_may_be_used():
    def fail():
        error = RuntimeError("Connection closed by peer")
        raise error from error  # is its own cause: no loop

    assert "rank 0 raised RuntimeError: Connection closed" in str(error_of(fail))


def test_what_gloo_cannot_do_is_no_other_ranks_fault():
    def allow_no_more_files():
        count = len(os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    class FewFiles:
        def __reduce__(self):
            return allow_no_more_files, ()

    error = error_of(print, FewFiles(), world_size=1)
    assert re.search(r"rank 0 raised RuntimeError: (.|\n)*Too many open files", str(error))


def test_an_exception_that_cannot_be_shown_is_an_error():
    class Bad(RuntimeError):
        def __str__(self):
            raise ValueError

    def fail():
        raise Bad

    assert re.match("rank 0 raised .*Bad: <exception str", str(error_of(fail)))


# a function that does not behave

def test_a_rank_may_leave_the_group_itself():
    def leave():
        dist.destroy_process_group()
        return 1

    assert run_ranks(leave, 2) == [1, 1]


@pytest.mark.parametrize("parent_stays", [True, False])
def test_a_copy_that_a_rank_forks_is_not_the_rank(parent_stays):
    def fork():
        me = os.getpid()
        if os.fork():
            time.sleep(0.2)
            if not parent_stays:
                os._exit(0)
        return me == os.getpid()

    if parent_stays:
        assert run_ranks(fork, 2) == [True, True]
    else:
        assert "exited without returning a result" in str(error_of(fork))


def test_a_rank_that_closes_its_files_ends_in_an_error(capsys):
    def close():
        if dist.get_rank() == 1:
            os.closerange(0, 200)
        dist.barrier()

    error = error_of(close)
    assert error.rank in (0, 1)
    capsys.readouterr()


@pytest.mark.parametrize("stream", [None, "closed", object()])
def test_a_rank_may_put_anything_in_the_place_of_its_streams(stream):
    def replace():
        if stream == "closed":
            sys.stdout.close()
        else:
            sys.stdout = sys.stderr = stream
        return 1

    assert run_ranks(replace, 2, timeout=SOON) == [1, 1]


def test_a_rank_that_removes_the_folder_ends_in_an_error():
    def remove():
        import shutil
        shutil.rmtree(os.path.dirname(os.readlink("/proc/self/fd/1")))
        return 1

    assert str(error_of(remove, world_size=1)) == "rank 0 exited with code 1"


def test_a_rank_may_work_in_the_folder(tmp_path):
    def settle():
        folder = os.path.dirname(os.readlink("/proc/self/fd/1"))
        os.chdir(folder)
        os.mkdir("more")
        return folder, os.stat(folder).st_mode & 0o777

    for folder, mode in run_ranks(settle, 1):
        assert Path(folder).parent == tmp_path and not Path(folder).exists()
        assert mode == 0o700


def test_threads_that_are_left_running_do_not_hold_up_the_end():
    def leave():
        threading.Thread(target=time.sleep, args=(50,)).start()
        return 1

    assert run_ranks(leave, 2, timeout=5) == [1, 1]


def test_a_hundred_megabytes_of_prints_need_no_hundred_megabytes_of_disk(capsys):
    def flood():
        size = 0
        for _ in range(200):
            os.write(1, b"x" * 999_999 + b"\n")
            size = max(size, os.fstat(1).st_size)
            time.sleep(0.0005)
        print("last")
        return size

    assert run_ranks(flood, 1, timeout=SOON)[0] < 150e6
    first, *_, last = capsys.readouterr().out.splitlines()
    left_out = int(re.fullmatch(r"rank 0: \[(\d+) bytes left out\]", first)[1])
    assert 0 <= 200e6 - left_out < 70e6 and last == "rank 0: last"


# four at once, and after a death

def test_launches_from_threads_do_not_meet():
    def total(number):
        tensor = torch.tensor([number])
        dist.all_reduce(tensor)
        return tensor.item()

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda i: run_ranks(total, 2, 10**i, timeout=60), range(4))
        assert list(results) == [[2 * 10**i] * 2 for i in range(4)]


def test_a_launch_works_after_a_killed_one():
    for _ in range(3):
        error_of(lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert run_ranks(dist.get_rank, 2) == [0, 1]


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
    assert run_ranks(dist.get_rank, 2) == [0, 1]  # at once: it may not have been noticed
    assert before.poll() == -signal.SIGKILL and nursery().pid != before.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_no_rank_outlives_the_process_that_watches_it(number, tmp_path, monkeypatch):
    def kill(folder, number):
        Path(folder, f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getppid(), number)
        time.sleep(50)

    monkeypatch.setattr(launch, "LATE", 0.2)
    error = error_of(kill, tmp_path, number, timeout=1, late=3)
    assert "parent process is gone or does not answer" in str(error)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2 and until(lambda: not any(map(psutil.pid_exists, pids)), 1)
    assert run_ranks(dist.get_rank, 2) == [0, 1]


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


# nothing is left behind; the fixture looks after each test

def test_processes_that_a_rank_started_are_gone(tmp_path):
    def start(folder):
        plain = subprocess.Popen(["sleep", "50"])
        alone = subprocess.Popen(["sleep", "50"], start_new_session=True)
        # two forks and a session of its own: a daemon
        daemon = f"(setsid sh -c 'echo $$ > {folder}/daemon; exec sleep 50' &)"
        subprocess.run(["sh", "-c", daemon])
        while not Path(folder, "daemon").exists():
            time.sleep(0.01)
        return [plain.pid, alone.pid]

    [pids] = run_ranks(start, 1, tmp_path, timeout=SOON)
    pids.append(int((tmp_path / "daemon").read_text()))
    assert not any(map(psutil.pid_exists, pids))


STUCK = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from manual_dp.ranks import run_ranks

def stuck(how):
    open(f"{how}-{dist.get_rank()}.pid", "w").write(str(os.getpid()))
    if how == "loop":
        while True: pass
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.recv(torch.zeros(1), 1 - dist.get_rank())
"""


def pids_of_ranks(folder, count):
    """Wait until so many ranks have written down their pids; return these."""
    def written():
        return [path for path in folder.glob("*.pid") if path.read_text()]
    assert until(lambda: len(written()) == count, 60)
    time.sleep(0.1)  # now they are stuck
    return [int(path.read_text()) for path in written()]


STUCK_THREE_TIMES = """
for how in "gloo", "loop", "stop":
    threading.Thread(target=run_ranks, args=(stuck, 2, how)).start()
"""


def ends_with_all_its_ranks(process, number, folder):
    """Send a signal to a process that is stuck three times; see what is left."""
    pids = pids_of_ranks(folder, 6)
    assert len(list(folder.glob("manual_dp-*"))) == 3
    process.send_signal(number)
    process.wait(10)
    assert until(lambda: not any(map(psutil.pid_exists, pids)), 2)
    assert until(lambda: list(folder.glob("manual_dp-*")) == [], 2)


def test_a_caller_that_is_interrupted_terminated_or_killed_leaves_no_rank(start_python):
    interrupted, folder = start_python(STUCK + """
try:
    run_ranks(stuck, 2, "gloo")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os.remove("gloo-0.pid")
    os.remove("gloo-1.pid")
print(run_ranks(dist.get_rank, 2), flush=True)
""" + STUCK_THREE_TIMES)
    # the other has no stdin, stdout, stderr, and many open files
    killed, other_folder = start_python("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
files = [open("/dev/null") for _ in range(1100)]
assert files[0].fileno() == 0
""" + STUCK + STUCK_THREE_TIMES, preexec_fn=lambda: os.closerange(0, 3))
    pids = pids_of_ranks(folder, 2)
    start = time.monotonic()
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.stdout.readline() == "interrupted\n"
    assert time.monotonic() - start < 1
    assert not any(map(psutil.pid_exists, pids))
    assert interrupted.stdout.readline() == "[0, 1]\n"  # the next call works
    ends_with_all_its_ranks(interrupted, signal.SIGTERM, folder)
    ends_with_all_its_ranks(killed, signal.SIGKILL, other_folder)
    assert until(lambda: alive() == [], 20)  # a nursery ends when it has done an import


def test_a_launch_inside_a_rank_leaves_nothing_either(tmp_path):
    def inner(folder):
        Path(folder, str(dist.get_rank())).touch()
        time.sleep(50)

    def outer(folder):
        tempfile.tempdir = folder
        results = run_ranks(dist.get_rank, 2)
        threading.Thread(target=run_ranks, args=(inner, 2, folder)).start()
        while not (Path(folder, "0").exists() and Path(folder, "1").exists()):
            time.sleep(0.01)
        sys.exit(str(results))

    error = error_of(outer, str(tmp_path), world_size=1)
    assert (str(error), error.details) == ("rank 0 exited with code 1", "[0, 1]\n")


def test_ranks_listen_on_loopback_alone():
    def listening():
        dist.all_reduce(torch.ones(1))
        return [(link.status, link.laddr.ip)
                for link in psutil.Process().net_connections("all") if link.family
                in (socket.AF_INET, socket.AF_INET6)]

    for links in run_ranks(listening, 3):
        assert {address for _, address in links} == {"127.0.0.1"}


def test_ranks_end_cleanly_ten_times_in_a_row(monkeypatch):
    ask, status = launch._ask, []

    def spy(job):
        report = ask(job)
        status.append(report["status"])
        return report

    def total():
        dist.all_reduce(torch.ones(1000))
        dist.barrier()

    monkeypatch.setattr(launch, "_ask", spy)
    for _ in range(10):
        run_ranks(total, 3)
    assert status == [{0: 0, 1: 0, 2: 0}] * 10


def test_open_files_do_not_pile_up():
    def count():
        return len(os.listdir("/proc/self/fd"))

    run_ranks(int, 1)
    before = count()
    for _ in range(3):
        run_ranks(int, 2)
        error_of(lambda: os._exit(1))
    assert count() == before


# what the ranks print

def test_prints_come_in_the_order_of_ranks(capsys):
    def say():
        for i in range(3):
            print("line", i, "of", dist.get_rank())
            time.sleep(0.01)
        print("trouble", file=sys.stderr)
        os.write(1, b"\xff no text\n")
        print("no end", end="")

    run_ranks(say, 2)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"rank {rank}: {text}" for rank in range(2)
        for text in [*(f"line {i} of {rank}" for i in range(3)), "\ufffd no text", "no end"]]
    assert err == "rank 0: trouble\nrank 1: trouble\n"


def test_prints_of_a_failed_rank_are_shown(capsys):
    def fail():
        print("before", flush=True)
        print("unfinished", end="")
        raise ValueError

    error_of(fail, world_size=1)
    assert capsys.readouterr().out == "rank 0: before\nrank 0: unfinished\n"


def test_a_progress_bar_shows_its_last_state(capsys):
    run_ranks(lambda: print("\r10%\r50%\r100%\nend\r"), 1)
    assert capsys.readouterr().out == "rank 0: 100%\nrank 0: end\n"


def test_twenty_megabytes_of_prints_are_cut_and_fast(capsys):
    def flood():
        for i in range(200_000):
            print(f"{i:099}")

    start = time.monotonic()
    run_ranks(flood, 1)
    assert time.monotonic() - start < 10
    out = capsys.readouterr().out
    assert out.startswith("rank 0: [19000000 bytes left out]\n")
    assert out.endswith("0199999\n") and len(out) < 1.2e6


def test_text_that_the_terminal_cannot_show_is_escaped(monkeypatch, tmp_path):
    with open(tmp_path / "terminal", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        run_ranks(lambda: print("caf\u00e9"), 1)
    assert (tmp_path / "terminal").read_text() == "rank 0: caf\\xe9\n"


# arguments that are refused, before any process is started

@pytest.mark.parametrize("changes, error, text", [
    ({"function": 3}, TypeError, "function must be callable, got int"),
    ({"world_size": 0}, ValueError, "from 1 to 256, got 0"),
    ({"world_size": -1}, ValueError, "from 1 to 256, got -1"),
    ({"world_size": 257}, ValueError, "from 1 to 256, got 257"),
    ({"world_size": True}, ValueError, "got True"),
    ({"world_size": 2.0}, ValueError, r"got 2\.0"),
    ({"world_size": "2"}, ValueError, "got '2'"),
    ({"timeout": 0}, ValueError, r"timeout must be seconds from 0 to 10\*\*6, got 0"),
    ({"timeout": -1}, ValueError, "got -1"), ({"timeout": math.nan}, ValueError, "got nan"),
    ({"timeout": math.inf}, ValueError, "got inf"), ({"timeout": True}, ValueError, "got True"),
    ({"timeout": "9"}, ValueError, "got '9'"), ({"timeout": None}, ValueError, "got None"),
    ({"timeout": 10**6 + 1}, ValueError, "got 1000001"),
    ({"backend": "mpi"}, ValueError, "backend must be one of .*gloo.*nccl.*, got 'mpi'"),
    ({"backend": None}, ValueError, "backend must be one of"),
])
def test_bad_arguments_are_refused_before_anything_starts(monkeypatch, changes, error, text):
    monkeypatch.setattr(launch, "_ask", None)
    arguments = {"function": int, "world_size": 2, **changes}
    function, world_size = arguments.pop("function"), arguments.pop("world_size")
    with pytest.raises(error, match=text):
        run_ranks(function, world_size, **arguments)


def test_nccl_needs_a_gpu_for_each_rank(monkeypatch):
    monkeypatch.setattr(launch, "_ask", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="a GPU for each rank: 2 ranks, 1 GPUs"):
        run_ranks(int, 2, backend="nccl")


def test_a_system_without_fork_is_refused(monkeypatch):
    monkeypatch.setattr(launch, "_ask", None)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(OSError, match="run_ranks needs fork"):
        run_ranks(int, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nccl_ranks_sum_on_their_gpus():
    def total():
        tensor = torch.ones(3, device="cuda")
        dist.all_reduce(tensor)
        return tensor.tolist(), tensor.device.index

    count = torch.cuda.device_count()
    assert run_ranks(total, count, backend="nccl") == [([count] * 3, rank)
                                                       for rank in range(count)]


def test_a_nursery_that_cannot_start_says_why(monkeypatch):
    launch._nursery.cache_clear()
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    error = error_of(int)
    assert "the process that forks the ranks does not start" in str(error)
    assert "No module named" in error.details
    assert (error.kind, error.rank) == ("lost", None)
