"""What a script's ranks leave behind tells how it ended and where they stand."""

import json
import os
import signal

import pytest

from manual_dp.audit.failure import Diary, failure, stands
from manual_dp.audit.launch import Ended, _check_begun, _ended, _hung, audit_script

STACK = """Current thread 0x00007f (most recent call first):
  File "<frozen runpy>", line 88 in _run_code
  File "/lib/site-packages/torch/autograd/graph.py", line 829 in _engine_run_backward
  File "train.py", line 41 in run_batch
  File "train.py", line 60 in main
  File "/lib/manual_dp/audit/runner.py", line 39 in main
"""


def test_a_script_that_is_not_there_is_said():
    with pytest.raises(FileNotFoundError, match="there is no script nowhere.py"):
        audit_script(["nowhere.py"])


def test_a_hang_keeps_where_every_rank_stands(tmp_path):
    for rank in range(2):
        (tmp_path / f"stands-{rank}").write_text(STACK.replace("41", f"4{rank}"))
    ended = _hung(tmp_path, "no rank got farther", 7)
    assert (ended.kind, str(ended)) == ("hung", "no rank got farther in 7 s")
    assert stands(ended.details) == {0: "train.py, line 40, in run_batch",
                                     1: "train.py, line 41, in run_batch"}
    assert failure(ended, tmp_path).code == "hang"
    for rank in range(2):
        Diary(tmp_path, rank).note(step=2, **{"in": "step"})
    assert failure(ended, tmp_path).says.startswith(
        "rank 0 in step 2, after 0 forwards (train.py, line 40, in run_batch); rank 1 in")


def test_every_rank_is_asked_where_it_stands(tmp_path):
    (tmp_path / "pid-0").write_text(str(os.getpid()))
    asked = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    try:
        _hung(tmp_path, "no rank got farther", 7)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert asked == [signal.SIGUSR1]


RAISED = {"kind": "raised", "status": 1, "traceback": "Traceback", "peer": False}
LEFT, DONE = {"kind": "exit", "status": 2}, {"kind": "end", "status": 0}


def ended(folder, ends, failed, code=1):
    """Return how a script ended whose ranks left these notes."""
    for rank in {*ends, *failed}:
        (folder / f"pid-{rank}").write_text("99999999")
    for rank, end in ends.items():
        (folder / f"end-{rank}").write_text(json.dumps(end))
    (folder / "failed").write_text(json.dumps(failed))
    return _ended(folder, code)


def raised(text, time, peer=False):
    return {**RAISED, "text": text, "time": time, "peer": peer}


@pytest.mark.parametrize("ends, failed, kind, rank, text", [
    ({0: raised("KeyError: 'so'", 2), 1: raised("OSError: no", 1)}, {0: 1, 1: 1},
     "raised", 1, "rank 1 raised OSError: no"),
    ({0: raised("RuntimeError: closed", 1, peer=True), 1: raised("KeyError: 'so'", 2)},
     {0: 1, 1: 1}, "raised", 1, "rank 1 raised KeyError: 'so'"),
    ({0: raised("RuntimeError: closed", 1, peer=True)}, {0: 1, 1: -9}, "killed", 1,
     "rank 1 was killed by SIGKILL"),
    ({}, {0: -15, 1: -11}, "killed", 1, "rank 1 was killed by SIGSEGV"),
    ({0: raised("RuntimeError: closed", 1, peer=True), 1: DONE}, {0: 1}, "gone", 1,
     "rank 1 came to the end of the script"),
    ({0: raised("RuntimeError: closed", 1, peer=True), 1: {**LEFT, "status": 0}},
     {0: 1}, "gone", 1, "rank 1 left with status 0"),
    ({0: raised("RuntimeError: closed", 1, peer=True)}, {0: 1, 1: -15}, "raised", 0,
     "rank 0 raised RuntimeError: closed"),
    ({0: LEFT}, {0: 2, 1: -15}, "exited", 0, "rank 0 ended with status 2"),
    ({}, {0: -15, 1: 7}, "exited", 1, "rank 1 ended with status 7")])
def test_what_a_rank_did_comes_before_what_others_met_with(
        tmp_path, ends, failed, kind, rank, text):
    told = ended(tmp_path, ends, failed)
    assert (told.kind, told.rank, told.text) == (kind, rank, text)


def test_what_torchrun_says_is_told_where_no_rank_began(tmp_path):
    (tmp_path / "torchrun").write_text("no such option")
    assert ended(tmp_path, {}, {}, 7) == Ended(
        "died", None, "torchrun ended with status 7", "no such option")
    assert ended(tmp_path, {0: DONE, 1: DONE}, {}, 0) is None


@pytest.mark.parametrize("end, diaries, words", [
    (Ended("alone", None, "", ""), {}, "starts its ranks itself.* as python a.py"),
    (Ended("exited", 1, "rank 1 ended with status 2", ""), {},
     "a.py: rank 1 ended with status 2, before any step"),
    (None, {0: {}}, "nothing was watched on rank 1: say watch"),
    (None, {0: {"taken": []}, 1: {"taken": [0]}}, "though watch was called: the steps: "
     "watch follows torch's optimizers"),
    (None, {0: {"taken": [3]}, 1: {"taken": [], "wanders": True}},
     "rank 1 took no step, and got other weights")])
def test_a_script_without_a_step_is_refused_with_the_reason(end, diaries, words):
    with pytest.raises(RuntimeError, match=words):
        _check_begun("a.py", end, diaries, {}, 2)
    _check_begun("a.py", Ended("exited", 1, "rank 1 ended with status 2", ""),
                 {0: {"taken": [1]}}, {}, 2)
    # optimizers of other tensors: they took no step that counts, and left notes
    _check_begun("a.py", None, {0: {}, 1: {}}, {0: "a run", 1: "another"}, 2)


def test_a_rank_that_has_left_is_named_where_others_hang(tmp_path):
    (tmp_path / "end-1").write_text(json.dumps(DONE))
    (tmp_path / "pid-1").write_text("99999999")
    for rank, (total, steps) in enumerate([(3, 2), (2, 2)]):
        Diary(tmp_path, rank).note(step=2, total=total, taken=[steps])
    told = failure(_hung(tmp_path, "no rank got farther", 7), tmp_path)
    assert (told.code, told.rank) == ("unequal-batches", 1)
    assert told.says == ("rank 1 came to the end of the script after 2 steps, and rank 0 "
                         "went on")
