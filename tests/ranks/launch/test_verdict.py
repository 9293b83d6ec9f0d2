"""What a launch is said to have ended in: the cause, its rank, what was printed."""

import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch.verdict import outcome_of_launch
from tests.support.launches import LATE, SOON, error_of

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# one cause


def test_an_exception_is_named_and_not_what_the_waiting_ranks_say():
    def fail():
        if dist.get_rank() == 1:
            raise KeyError("cause")
        dist.all_reduce(torch.ones(1))

    error = error_of(fail, world_size=3)
    assert str(error) == "rank 1 raised KeyError: 'cause'" and error.rank == 1


def test_a_signal_is_named():
    def die():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.barrier()

    error = error_of(die)
    assert str(error) == "rank 1 was killed by SIGTERM" and error.rank == 1
    assert (error.kind, error.cause) == ("killed", None)


def test_a_crash_says_where():
    def crash():
        import ctypes

        return ctypes.string_at(0)  # reads address 0

    error = error_of(crash, world_size=1)
    assert str(error) == "rank 0 was killed by SIGSEGV"
    assert re.search(r"Segmentation fault(.|\n)* in crash", error.details)


@pytest.mark.parametrize(
    "how, code, text",
    [
        (os._exit, 0, "without returning a result (exit code 0)"),
        (sys.exit, None, "without returning a result (exit code 0)"),
        (sys.exit, 3, "with code 3"),
        (sys.exit, "the reason", "with code 1"),
    ],
)
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


# time is up


def stop():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def spin():
    while dist.get_rank() == 1:  # in torch.distributed, but not waiting
        pass
    dist.barrier()


def ignore_signals():
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    while dist.get_rank() == 1:
        re.match("(a+)+b", "a" * 40)  # in C, for years
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


def wait_for_one_another():
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
    dist.barrier()


DEADLINE = (
    8  # seconds: all that hangs does so at once, and has to come to where it does
)
FILE = "kurs \u00fc \u4e2d \U0001f600.py"
LATE_RANK = rf"rank {{}} had not finished after {DEADLINE} s: it was "
# by name: a function, its arguments, the rank that is named, what is said, and where
HANGS = {
    "stopped": (stop, (), 1, "stopped", None),
    "spins": (spin, (), 1, r"in spin, line \d+", "spin"),
    "ignores signals": (
        ignore_signals,
        (),
        1,
        r"in ignore_signals, line \d+",
        "ignore_signals",
    ),
    "nobody waits": (time.sleep, (50,), 0, "in .*; nor had rank 1", "call"),
    **{
        f"sleeps while another waits, {wait}": (
            sleep,
            (wait,),
            1,
            r"in sleep, line \d+",
            "sleep",
        )
        for wait in ("async", "ring", "backward")
    },
    "in a file of any name": ("in a file", (), 1, "in sleep, line 5", "sleep"),
    "every rank waits": (wait_for_one_another, (), 0, None, "recv"),
}


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """Launch all that hangs at once; return the error of each, and the file's path."""
    path, names = tmp_path_factory.mktemp("a b") / FILE, {}
    path.write_text("""
def sleep():
    import time, torch.distributed as dist
    if dist.get_rank() == 1:
        time.sleep(50)
    dist.barrier()
""")
    exec(compile(path.read_text(), str(path), "exec"), names)

    def run(case):
        function, args, *_ = case
        return error_of(
            names["sleep"] if function == "in a file" else function,
            *args,
            timeout=DEADLINE,
        )

    with ThreadPoolExecutor(len(HANGS)) as pool:
        return {**dict(zip(HANGS, pool.map(run, HANGS.values()))), "path": str(path)}


@pytest.mark.parametrize("name", HANGS)
def test_who_holds_up_the_others_is_named_at_the_deadline_not_who_waits(hung, name):
    _, _, rank, text, where = HANGS[name]
    error = hung[name]
    said = (
        LATE_RANK.format(rank) + text
        if text
        else (
            f"time was up after {DEADLINE} s and every rank that was left was waiting: rank 0 in "
            "recv, rank 1 in barrier"
        )
    )
    assert re.fullmatch(said, str(error)) and error.rank == rank
    assert (error.kind, error.where) == ("hung", where)
    assert re.match(r"rank 0: (.|\n)*\nrank 1: ", error.details)  # where both were
    assert ("in a file" in name) == (hung["path"] in error.details)


# what the ranks were doing at the deadline, by the name of a hang
STATES = {
    "stopped": {0: "waits", 1: "stopped"},
    "spins": {0: "waits", 1: "runs"},
    "nobody waits": {0: "sleeps", 1: "sleeps"},
    "every rank waits": {0: "waits", 1: "waits"},
}


@pytest.mark.parametrize("name", STATES)
def test_an_error_tells_what_each_rank_was_doing_at_the_deadline(hung, name):
    assert hung[name].states == STATES[name]


def test_a_skipped_call_is_named():
    def skip():
        if dist.get_rank() == 1:
            return "early"
        dist.all_reduce(torch.ones(1))

    error = error_of(skip)
    assert (
        str(error) == "rank 0 was still waiting in all_reduce when rank 1 had finished"
    )
    assert (error.kind, error.rank, error.where) == ("left", 0, "all_reduce")


def test_tensors_of_other_sizes_end_in_an_error(capsys):
    def mismatch():
        dist.all_reduce(torch.ones(6 if dist.get_rank() else 4))

    error = error_of(mismatch)
    assert re.match(r"rank \d was killed by SIGABRT", str(error))
    assert "Received data size doesn't match expected size" in error.details
    capsys.readouterr()


# of several, the first


@pytest.mark.parametrize("how", ["replaces it", "aborts", "is late"])
def test_a_death_is_named_whatever_another_rank_makes_of_it(how):
    def rank_function():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "is late":
            time.sleep(0.3)
            raise ValueError("later")
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            if how == "replaces it":
                raise ValueError("something went wrong") from None
            os.abort()

    assert str(error_of(rank_function)) == "rank 1 was killed by SIGKILL"


@pytest.mark.parametrize("first", [0, 1])
def test_the_earlier_of_two_causes_is_named(first):
    def rank_function():
        if dist.get_rank() != first:
            time.sleep(0.3)
        raise (ValueError if dist.get_rank() == 0 else KeyError)("mine")

    assert error_of(rank_function).rank == first


@pytest.mark.parametrize(
    "ended, first",
    [
        ({0: (1.0, -signal.SIGABRT), 1: (1.02, -signal.SIGKILL)}, 1),
        ({0: (1.0, -signal.SIGABRT), 1: (1.02, 3)}, 1),
        ({0: (1.0, 3), 1: (1.0, -signal.SIGKILL)}, 1),
        ({0: (1.0, 3), 1: (1.02, -signal.SIGKILL)}, 0),
        ({0: (1.02, -signal.SIGABRT), 1: (1.0, -signal.SIGABRT)}, 1),
    ],
)
def test_an_abort_that_is_seen_first_may_follow_from_another_end(
    ended, first, tmp_path
):
    job = {"world_size": 2, "timeout": 9, "notes": [b"", b""]}
    assert outcome_of_launch(str(tmp_path), job, ended, {}).rank == first


def test_of_ranks_that_all_meet_with_the_same_the_lowest_is_named():
    def fail(late):
        if dist.get_rank() == late:
            time.sleep(0.1)
        raise ValueError(dist.get_rank())

    for late in 0, 2:
        assert str(error_of(fail, late, world_size=3)) == "rank 0 raised ValueError: 0"


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
        f"rank {rank}: {text}"
        for rank in range(2)
        for text in [
            *(f"line {i} of {rank}" for i in range(3)),
            "\ufffd no text",
            "no end",
        ]
    ]
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
    assert time.monotonic() - start < LATE
    out = capsys.readouterr().out
    assert out.startswith("rank 0: [19000000 bytes left out]\n")
    assert out.endswith("0199999\n") and len(out) < 1.2e6


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


def test_text_that_the_terminal_cannot_show_is_escaped(monkeypatch, tmp_path):
    with open(tmp_path / "terminal", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        run_ranks(lambda: print("caf\u00e9"), 1)
    assert (tmp_path / "terminal").read_text() == "rank 0: caf\\xe9\n"
