"""What a script's ranks leave behind tells how it ended and where they stand."""

import pytest

from manual_dp.audit.failure import failure
from manual_dp.audit.launch import Ended, _hung, _place, _raised, audit_script

STACK = """Current thread 0x00007f (most recent call first):
  File "<frozen runpy>", line 88 in _run_code
  File "/lib/site-packages/torch/autograd/graph.py", line 829 in _engine_run_backward
  File "/home/me/train.py", line 41 in run_batch
  File "/home/me/train.py", line 60 in main
  File "/lib/manual_dp/audit/runner.py", line 39 in main
"""


def test_a_script_that_is_not_there_is_said():
    with pytest.raises(FileNotFoundError, match="there is no script nowhere.py"):
        audit_script(["nowhere.py"])


def test_the_place_is_the_first_line_of_the_script(tmp_path):
    (tmp_path / "stands-0").write_text(STACK)
    assert _place(tmp_path / "stands-0") == ('"/home/me/train.py", line 41 in run_batch',
                                             STACK)
    assert _place(tmp_path / "stands-1") == ("an unknown place", "")


def test_a_hang_says_where_every_rank_stands(tmp_path):
    (tmp_path / "stands-1").write_text(STACK)
    ended = _hung(tmp_path, 2, 7)
    assert (ended.kind, ended.text) == (
        "hung", "no rank got farther in 7 s; rank 0 is at an unknown place; rank 1 is at "
        '"/home/me/train.py", line 41 in run_batch')
    assert STACK in ended.details
    assert failure(ended, tmp_path).code == "hang"


def test_the_rank_that_raised_first_is_named(tmp_path):
    path = tmp_path / "raised-1"
    path.write_text("Traceback\n  File\nKeyError: 'so'\n")
    ended = _raised([path], 1)
    assert (ended.kind, ended.rank, ended.text) == (
        "raised", 1, "rank 1 raised KeyError: 'so'")
    assert ended.details.startswith("Traceback")
    assert _raised([], 7) == Ended("died", None, "the script ended with status 7", "")
    assert failure(_raised([], 7), tmp_path).code == "exception"
