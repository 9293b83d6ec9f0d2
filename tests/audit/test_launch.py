"""What a script's ranks leave behind tells how it ended and where they stand."""

import os
import signal

import pytest

from manual_dp.audit.failure import Diary, failure, stands
from manual_dp.audit.launch import Ended, _hung, _raised, audit_script

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
    ended = _hung(tmp_path, 7)
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
        _hung(tmp_path, 7)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert asked == [signal.SIGUSR1]


def test_the_rank_that_raised_first_is_named(tmp_path):
    path = tmp_path / "raised-1"
    path.write_text("Traceback\n  File\nKeyError: 'so'\n")
    ended = _raised([path], 1, {"0", "1"})
    assert (ended.kind, ended.rank, ended.text) == (
        "raised", 1, "rank 1 raised KeyError: 'so'")
    assert ended.details.startswith("Traceback")
    assert _raised([], 7, {"0"}) == Ended("died", None, "the script ended with status 7", "")
    assert failure(_raised([], 7, {"0"}), tmp_path).code == "exception"
