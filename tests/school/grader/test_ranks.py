"""The ranks of a graded answer: the same results as real ranks, and the same faults."""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import run_ranks


def ring(numbers):
    """Send to the right, get from the left; then sum over all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor(numbers, dtype=torch.float64) * (rank + 1)
    left = torch.empty_like(mine)
    sending = dist.isend(mine, (rank + 1) % world_size) if world_size > 1 else None
    if sending is None:
        left.copy_(mine)
    else:
        dist.recv(left, (rank - 1) % world_size)
        sending.wait()
    total = mine.clone()
    dist.all_reduce(total)
    return {"rank": rank, "left": left.tolist(), "total": total.tolist()}


# each in turn, in one process that has torch loaded, as child.py has
FAULTS = {
    "raises": """
        def function():
            if dist.get_rank() == 1:
                raise ValueError("boom")
            dist.barrier()""",
    "blank": """
        def function():
            if dist.get_rank() == 1:
                raise NotImplementedError("write me")
            dist.barrier()""",
    "hangs": """
        def function():
            if dist.get_rank() == 1:
                return "done"
            dist.barrier()""",
    "all hang": """
        def function():
            while True:
                pass""",
    "stopped": """
        def function():
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGSTOP)""",
    "dies": """
        def function():
            if dist.get_rank() == 1:
                os._exit(0)
            time.sleep(60)""",
    "is killed": """
        def function():
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)""",
    "exits": """
        def function():
            sys.exit(0)""",
    "strange message": """
        def function():
            raise ValueError("a\\ud800\\nb")""",
    "large": """
        def function():
            return ["x" * 10**6, float("nan")]""",
    "prints": """
        def function():
            print("hello")
            return dist.get_rank()""",
}
LATE = ["all hang", "stopped"]  # they take all the time there is
SCRIPT = """
import ctypes, json, os, signal, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
ctypes.CDLL(None).prctl(36, 1)  # what is left behind becomes ours
from manual_dp.school.grader.ranks import run_ranks
{ring}
def opened():
    return len(os.listdir("/proc/self/fd"))
def attempt(*args, **kwargs):
    before, start = opened(), time.monotonic()
    try:
        result = run_ranks(*args, **kwargs)
    except BaseException as error:
        result = type(error).__name__, str(error), vars(error)
    left = opened() - before
    try:
        left += 1 + bool(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        pass
    return dict(result=result, left=left, took=time.monotonic() - start)
found = dict()
for world_size in (1, 2, 3, 4):
    found[f"ring {{world_size}}"] = attempt(ring, world_size, [0.5, -1.25, 3])
for name, source in json.loads(sys.argv[1]).items():
    exec(source)
    found[name] = attempt(function, 2, timeout=4 if name in {late} else 20)
found["variables"] = attempt(lambda: [os.environ["RANK"], os.environ["WORLD_SIZE"]], 2)
found["ours"] = dict(result="RANK" in os.environ, left=0, took=0)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return {name: what run_ranks gave, what was left, how long it took}."""
    faults = {name: inspect.cleandoc(source) for name, source in FAULTS.items()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ring=inspect.getsource(ring), late=LATE),
         json.dumps(faults)], cwd=tmp_path_factory.mktemp("forked"),
        timeout=300, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_give_the_results_of_real_ranks(found, world_size):
    numbers = [0.5, -1.25, 3]
    results = found[f"ring {world_size}"]["result"]
    assert results == run_ranks(ring, world_size, numbers)
    total = world_size * (world_size + 1) / 2
    assert results == [
        {"rank": rank, "left": [x * ((rank - 1) % world_size + 1) for x in numbers],
         "total": [x * total for x in numbers]} for rank in range(world_size)]


@pytest.mark.parametrize("name, message, kind, cause, where", [
    ("raises", "rank 1 raised ValueError: boom", "raised", "ValueError", None),
    ("blank", "rank 1 raised NotImplementedError: write me", "raised",
     "NotImplementedError", None),
    ("hangs", "rank 0 was still waiting in barrier when rank 1 had finished", "left",
     None, "barrier"),
    ("all hang", "rank 0 had not finished after 4 s: it was in function, line 3; nor "
                 "had rank 1", "hung", None, "function"),
    ("stopped", "rank 0 had not finished after 4 s: it was stopped", "hung", None, None),
    ("dies", "rank 1 exited without returning a result (exit code 0)", "exited", None,
     None),
    ("is killed", "rank 0 was killed by SIGKILL", "killed", None, None),
    ("exits", "rank 0 exited without returning a result (exit code 0)", "exited", None,
     None),
    ("strange message", "rank 0 raised ValueError: a\ud800\nb", "raised", "ValueError",
     None)])
def test_a_fault_is_one_error_that_names_the_rank(found, name, message, kind, cause,
                                                  where):
    error, text, data = found[name]["result"]
    rank = int(re.match(r"rank (\d)", text)[1])
    assert (data["rank"], data["kind"]) == (rank, kind)
    assert (data["cause"], data["where"]) == (cause, where)
    if name == "exits":  # both ranks do
        text = text.replace("rank 1", "rank 0")
    text = text.replace("line 2;", "line 3;")  # of the loop
    assert (error, text) == ("RankError", message)
    assert found[name]["took"] < 20


def test_a_large_result_comes_back_whole(found):
    for text, number in found["large"]["result"]:
        assert text == "x" * 10**6 and number != number


def test_what_ranks_print_does_not_mix_with_their_results(found):
    assert found["prints"]["result"] == [0, 1]


def test_a_rank_knows_its_number_as_under_torchrun(found):
    assert found["variables"]["result"] == [["0", "2"], ["1", "2"]]
    assert found["ours"]["result"] is False


def test_no_rank_no_warden_and_no_socket_is_left(found):
    assert {name: one["left"] for name, one in found.items() if one["left"]} == {}
