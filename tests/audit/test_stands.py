"""A rank that hangs says which collective it called last, and how a run ended."""

import json
import time

import pytest
import torch
import torch.distributed as dist

from manual_dp.audit.stands import END, NO_CALL, Standstill, ended, last_call, waits
from manual_dp.ranks import RankError, run_ranks


def calls():
    before = last_call()
    dist.all_reduce(torch.ones(2, 3))
    return before, last_call()


def test_the_last_collective_is_told_with_its_line():
    before, after = run_ranks(calls, 2)[0]
    assert before == NO_CALL
    assert after == "collective 1 is all_reduce of [2, 3] in test_stands.py, line 16"


def parted(folder):
    watching = Standstill(folder, dist.get_rank(), 1)
    watching.start()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        dist.barrier()
    else:
        dist.broadcast(torch.ones(5), 0)
    time.sleep(60)


def test_a_hang_says_in_which_call_each_rank_is(tmp_path):
    with pytest.raises(RankError) as error:
        run_ranks(parted, 2, tmp_path, timeout=5)
    found = ended(error.value, tmp_path)
    if found.code == "hang":  # gloo may also see that sizes differ
        assert (
            "rank 0: collective 2 is barrier in test_stands.py, line 31" in found.says
        )
        assert (
            "rank 1: collective 2 is broadcast of [5] in test_stands.py, line 33"
            in (found.says)
        )
    assert found.code in ("hang", "mismatch")


@pytest.mark.parametrize(
    "text, kind, details, code, words",
    [
        (
            "rank 1 raised KeyError: 'x'\nmore",
            "raised",
            "",
            "exception",
            "KeyError: 'x'",
        ),
        ("rank 1 was killed by SIGKILL", "killed", "", "exception", "SIGKILL"),
        ("rank 1 had not finished", "hung", "", "hang", "had not finished"),
        ("rank 1 waited for ranks that were gone", "left", "", "hang", "gone"),
        (  # gloo's words when another rank has come to its end; all its errors end so
            "rank 1 raised RuntimeError",
            "raised",
            "Connection closed by peer. Check the logs of the remote worker. GLHF!",
            "exception",
            "RuntimeError",
        ),
        (
            "rank 1 raised RuntimeError: DDP expects same model across all ranks",
            "raised",
            "",
            "start-differs",
            "same model",
        ),
        (
            "rank 1 raised RuntimeError: params[0] in this process with sizes [4]",
            "raised",
            'File "a.py", line 7, in <module>\nRuntimeError: params[0] in this process '
            "with sizes [4] appears not to match sizes of the same param in process 0",
            "start-differs",
            "sizes [4] at a.py, line 7",
        ),
        (
            "rank 1 was killed by SIGABRT",
            "killed",
            "Received data size doesn't match expected size",
            "mismatch",
            "another collective",
        ),
        (
            "rank 1 raised RuntimeError",
            "raised",
            "parameters that were not used in "
            "producing loss ...\nParameters which did not receive grad for rank 0: head.weight"
            "\nx",
            "not-trained",
            "head.weight",
        ),
    ],
)
def test_how_a_run_ended_is_a_finding(tmp_path, text, kind, details, code, words):
    found = ended(RankError(text, 1, details, kind), tmp_path)
    assert found.code == code and words in found.says


class Frame:
    """A line of a file where a rank stands."""

    def __init__(self, path, line):
        code = {"co_filename": str(path), "co_firstlineno": 1}
        self.f_code, self.f_lineno = type("code", (), code), line


@pytest.mark.parametrize(
    "name, text, idle, expected",
    [
        ("train.py", "total = sum(numbers)", True, False),  # it computes, or sleeps
        ("train.py", "handle.wait()", True, True),
        ("site-packages/torch/distributed/c10d.py", "x", False, True),
        ("site-packages/torch/autograd/graph.py", "x", True, True),  # DDP's backward
        ("site-packages/torch/autograd/graph.py", "x", False, False),  # a long backward
    ],
)
def test_only_who_stands_in_a_collective_waits(tmp_path, name, text, idle, expected):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    assert waits(Frame(path, 1), idle) == expected
    assert waits(Frame(path, None), idle) == expected  # between two lines


@pytest.mark.parametrize(
    "stands, cause, repair",
    [
        (["a.py, line 3", END], "it has fewer steps", "decide together"),
        (["a.py, line 3", "a.py, line 9"], "only some come to one", "or none"),
        (["a.py, line 3", "a.py, line 3"], "left out a batch", "the same steps"),
    ],
)
def test_a_hangs_cause_is_read_from_where_ranks_stand(tmp_path, stands, cause, repair):
    for rank, at in enumerate(stands):
        text = json.dumps([at, "collective 2 is broadcast in a.py, line 3", 1, True])
        (tmp_path / f"stands-{rank}").write_text(text)
    found = ended(RankError("rank 0 had not finished", 0, "", "hung"), tmp_path)
    assert found.code == "hang" and cause in found.cause and repair in found.repair
    assert "after 1 step" in found.says


def test_ranks_that_have_called_nothing_do_not_wait_for_each_other(tmp_path):
    for rank in range(2):
        text = json.dumps(["a.py, line 3", NO_CALL, 1, True])
        (tmp_path / f"stands-{rank}").write_text(text)
    found = ended(RankError("rank 0 had not finished", 0, "", "hung"), tmp_path)
    assert found.code == "hang" and "no rank waits for another" in found.cause
    assert found.see == ""


def test_who_waits_for_a_rank_at_its_end_hangs_also_if_gloo_tells_it_by_an_error(
    tmp_path,
):
    words = "RuntimeError: Connection closed by peer. GLHF!"
    text = json.dumps([END, "collective 2 is broadcast in a.py, line 3", 1, True])
    (tmp_path / "stands-0").write_text(text)
    found = ended(RankError("rank 1 raised", 1, words, "raised"), tmp_path)
    assert found.code == "hang" and "decided alone to stop" in found.cause


def test_that_a_rank_came_to_its_end_is_said_only_where_it_was_seen(tmp_path):
    words = "RuntimeError: Connection closed by peer. GLHF!"  # of who was ended first
    for rank, line in enumerate((3, 9)):
        text = json.dumps([f"a.py, line {line}", "collective 2 is barrier", 1, True])
        (tmp_path / f"stands-{rank}").write_text(text)
    found = ended(RankError("rank 1 exited", 1, words, "exited"), tmp_path)
    assert found.code == "hang" and "at different lines" in found.cause
    nowhere = ended(RankError("rank 1 had not finished", 1, "", "hung"), tmp_path / "x")
    assert nowhere.code == "hang" and "wait" not in nowhere.cause


@pytest.mark.parametrize(
    "kind, cause", [("killed", "want of memory"), ("exited", "as os._exit does")]
)
def test_a_process_that_ended_is_no_error_of_the_code(tmp_path, kind, cause):
    found = ended(RankError("rank 1 ended", 1, "", kind), tmp_path)
    assert found.code == "exception" and cause in found.cause


def test_of_a_rank_that_waited_for_one_at_its_end_both_are_told(tmp_path):
    call = "collective 20 is all_reduce in train.py, line 65"
    (tmp_path / "stands-1").write_text(json.dumps([END, call, 15, True]))
    error = RankError("rank 0 raised", 0, "Connection closed by peer", "raised")
    found = ended(error, tmp_path)
    assert (found.code, found.says) == (
        "hang",
        f"rank 1: came to its end, after 15 steps (before that: {call}). "
        "rank 0 waited for it: see the traceback",
    )
