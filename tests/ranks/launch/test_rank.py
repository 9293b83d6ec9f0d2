"""What a rank is, and what it leaves: a result, or an error with its line."""

import builtins
import os
import pickle
import random
import re
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import cloudpickle
import numpy
import psutil
import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch import launch
from manual_dp.ranks.launch.rank import pack
from tests.support.launches import SOON, error_of

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# where it runs


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
        assert run_ranks(surroundings, 1) == [
            (word, str(tmp_path), word, str(tmp_path))
        ]
    monkeypatch.delenv("MOMENT")
    assert run_ranks(surroundings, 1)[0][0] is None


def test_every_rank_draws_what_its_number_seeds_whatever_the_world_size():
    def numbers():
        return (
            random.random(),
            float(numpy.random.rand()),
            torch.rand(1).item(),
            torch.nn.Linear(1, 1).bias.item(),
        )

    first = run_ranks(numbers, 3)
    assert run_ranks(numbers, 2) == first[:2]
    assert len({number for row in first for number in row}) == 12
    for rank, row in enumerate(first):
        own = torch.Generator().manual_seed(rank)
        assert row[:3] == (
            random.Random(rank).random(),
            numpy.random.RandomState(rank).rand(),
            torch.rand(1, generator=own).item(),
        )


def test_no_rank_begins_before_all_have_joined():
    def joined():  # a rank that left now would break off the others' connections
        folder = Path(os.readlink("/proc/self/fd/1")).parent
        dist.destroy_process_group()
        return len(list(folder.glob("joined-*")))

    for _ in range(3):
        assert run_ranks(joined, 4) == [4] * 4


def test_ranks_listen_on_loopback_alone():
    def listening():
        dist.all_reduce(torch.ones(1))
        return [
            (link.status, link.laddr.ip)
            for link in psutil.Process().net_connections("all")
            if link.family in (socket.AF_INET, socket.AF_INET6)
        ]

    for links in run_ranks(listening, 3):
        assert {address for _, address in links} == {"127.0.0.1"}


def test_ranks_end_cleanly_five_times_in_a_row(monkeypatch):
    ask_warden, status = launch.ask_warden, []

    def spy(*args):
        report = ask_warden(*args)
        status.append(report["status"])
        return report

    def total():
        dist.all_reduce(torch.ones(1000))
        dist.barrier()

    monkeypatch.setattr(launch, "ask_warden", spy)
    for _ in range(5):
        run_ranks(total, 3)
    assert status == [{0: 0, 1: 0, 2: 0}] * 5


# what it raises


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
    assert "nursery" not in error.details and "/rank.py" not in error.details


def test_an_argument_that_does_not_unpickle_is_named():
    class Bad:
        def __reduce__(self):
            return int, ("not a number",)

    error = error_of(print, Bad())
    assert str(error).startswith("rank 0 raised ValueError: invalid literal for int()")


def test_a_result_that_cannot_be_sent_is_named():
    error = error_of(lambda: threading.Lock() if dist.get_rank() else 0)
    assert str(error).startswith(
        "rank 1 raised TypeError: the result, a lock, "
        "cannot be sent back: TypeError: cannot pickle"
    )


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
    assert re.search(
        r"rank 0 raised RuntimeError: (.|\n)*Too many open files", str(error)
    )


def test_an_exception_that_cannot_be_shown_is_an_error():
    class Bad(RuntimeError):
        def __str__(self):
            raise ValueError

    def fail():
        raise Bad

    assert re.match("rank 0 raised .*Bad: <exception str", str(error_of(fail)))


# a function that does not behave


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


def test_an_error_in_a_copy_is_shown_and_an_exit_code_is_kept(capsys):
    def fork(end):
        if (pid := os.fork()) == 0:
            print("forked", end="")
            end()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def look_up():
        return {}["a key"]

    assert run_ranks(fork, 1, look_up) == [1]
    shown = capsys.readouterr()
    assert shown.out == "rank 0: forked\n"
    assert shown.err.endswith("rank 0: KeyError: 'a key'\n")
    assert run_ranks(fork, 1, lambda: sys.exit(3)) == [3]
    assert capsys.readouterr().err == ""


def test_a_rank_that_closes_its_files_ends_in_an_error(capsys):
    def close():
        if dist.get_rank() == 1:
            os.closerange(0, 200)
        dist.barrier()

    error = error_of(close)
    assert error.rank in (0, 1)
    capsys.readouterr()


def test_a_rank_may_put_anything_in_the_place_of_its_streams():
    def replace():
        sys.stdout.close()
        sys.stderr = None
        return 1

    assert run_ranks(replace, 2, timeout=SOON) == [1, 1]


def remove_the_folder():
    import shutil

    shutil.rmtree(os.path.dirname(os.readlink("/proc/self/fd/1")))


def open_no_more():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def spoil_builtins():
    builtins.len = builtins.isinstance = builtins.open = None


@pytest.mark.parametrize(
    "spoil, why, text",
    [
        (
            open_no_more,
            r"OSError: \[Errno 24\] Too many open files: '/.*error-0'",
            "mine",
        ),
        (spoil_builtins, r"TypeError: 'NoneType' object is not callable", "mine"),
        (remove_the_folder, "FileNotFoundError: .*'/.*error-0'", "mine \u4e2d" * 10**5),
    ],
    ids=["no file left", "builtins", "removed, and long"],
)
def test_an_error_that_cannot_be_written_down_is_told_all_the_same(spoil, why, text):
    def fail():
        spoil()
        raise ValueError(text)

    error = error_of(fail, world_size=1)
    assert re.match(
        r"rank 0 exited with code 1: its error could not be written down "
        rf"\({why}\): ValueError: mine",
        str(error),
    )
    assert (error.kind, error.rank) == ("exited", 0) and len(str(error)) < 1200


def test_a_result_that_cannot_be_written_down_is_told_all_the_same():
    error = error_of(remove_the_folder, world_size=1)
    assert re.match(
        r"rank 0 exited with code 1: its error could not be written down "
        r".*error-0'\): FileNotFoundError: .*result-0'",
        str(error),
    )


def test_a_rank_may_work_in_the_folder(tmp_path):
    def work():
        folder = os.path.dirname(os.readlink("/proc/self/fd/1"))
        os.chdir(folder)
        os.mkdir("more")
        return folder, os.stat(folder).st_mode & 0o777

    for folder, mode in run_ranks(work, 1):
        assert Path(folder).parent == tmp_path and not Path(folder).exists()
        assert mode == 0o700


def test_threads_that_are_left_running_do_not_hold_up_the_end():
    def start():
        threading.Thread(target=time.sleep, args=(50,)).start()
        return 1

    assert run_ranks(start, 2, timeout=SOON) == [1, 1]


def test_a_function_that_is_sent_keeps_the_file_that_tracebacks_name():
    names = {"__name__": "__main__"}  # as in a cell
    exec(compile("def outer():\n    return lambda: 1", "file of a cell", "exec"), names)
    sent = pickle.loads(pack(names["outer"], "no"))
    assert sent()() == 1
    assert sent.__code__.co_filename == "file of a cell"
    assert sent().__code__.co_filename == "file of a cell"
