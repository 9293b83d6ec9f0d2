"""A run that ended early is judged by what its error carries, not by its English."""

import pytest
import torch.distributed as dist
from torch.nn import functional as F

from manual_dp.audit import audit
from manual_dp.audit.failure import failure
from manual_dp.audit.measure import refused
from manual_dp.audit.hooks import Diary
from manual_dp.ranks import RankError
from tests.support.broken_training import plain, rows


def in_step(folder, *forwards, rest="step"):
    for rank, count in enumerate(forwards):
        Diary(folder, rank).note(**{"step": 1, "forwards": count,
                                    "in": "step" if rank else rest})


@pytest.mark.parametrize("kind, code", [
    ("raised", "exception"), ("killed", "exception"), ("exited", "exception"),
    ("hung", "hang"), ("left", "hang")])
def test_the_kind_of_the_error_decides(tmp_path, kind, code):
    in_step(tmp_path, 2, 2)
    found = failure(RankError("time was up, it had not finished", 1, kind=kind), tmp_path)
    assert (found.code, found.rank if kind == "raised" else 1, found.step) == (code, 1, 1)


def test_the_rank_with_fewer_forwards_is_the_one_behind(tmp_path):
    in_step(tmp_path, 3, 1)
    found = failure(RankError("so", 0, kind="hung"), tmp_path)
    assert (found.code, found.number, found.rank) == ("unequal-batches", 2, 1)
    assert found.says == ("rank 0 in step 1, after 3 forwards; "
                          "rank 1 in step 1, after 1 forwards: so")


def test_an_end_before_any_diary_is_a_finding(tmp_path):
    found = failure(RankError("the ranks did not meet", kind="hung"), tmp_path)
    assert (found.code, found.says) == ("exception", "the ranks did not meet")


@pytest.mark.parametrize("cause, kind", [
    ("WrongType", TypeError), ("WrongValue", ValueError), ("TypeError", None)])
def test_only_what_the_audit_refuses_is_the_callers_error(cause, kind):
    error = refused(RankError(f"rank 0 raised a.{cause}: audit: no: 3", 0, cause=cause,
                              kind="raised"))
    assert error is None if kind is None else isinstance(error, kind)
    assert kind is None or str(error) == "audit: no: 3"


def crossed(model, optimizer, X, y):
    optimizer.zero_grad()
    F.cross_entropy(model(X), y).backward()
    params = list(model.parameters())
    for p in params if dist.get_rank() else reversed(params):
        dist.all_reduce(p.grad)
    optimizer.step()


def test_all_reduces_in_another_order_are_a_finding():
    first = audit(plain, rows(12), crossed, steps=1, timeout=10).findings[0]
    assert first.code == "mismatch", first
