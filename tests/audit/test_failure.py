"""A run that ended early is judged by what its error carries, not by its English."""

import pytest
import torch.distributed as dist
from torch.nn import functional as F

from manual_dp.audit import audit
from manual_dp.audit.failure import Diary, failure, read_diaries, served, uneven
from manual_dp.audit.measure import refused
from manual_dp.ranks import RankError
from tests.support.broken_training import plain, rows


def in_step(folder, *forwards, rest="step"):
    for rank, count in enumerate(forwards):
        Diary(folder, rank).note(**{"step": 1, "forwards": count,
                                    "in": "step" if rank else rest})


@pytest.mark.parametrize("kind, code", [
    ("raised", "exception"), ("killed", "killed"), ("exited", "exception"),
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


def at(taken, total, step=0, rest="step"):
    return {"step": step, "in": rest, "taken": taken, "total": total}


@pytest.mark.parametrize("first, second, code, says", [
    (at([3], 3), at([], 3), "nothing-moved", "rank 1 took no step, rank 0 3"),
    (at([2], 4), at([3], 3), "replicas-differ", "rank 0 took 2 steps, rank 1 3"),
    (at([4, 2], 10), at([3, 3], 9), "replicas-differ",
     "rank 0 took 2 steps of optimizer 1, rank 1 3"),
    (at([5, 3], 15, 3, "the rest"), at([3, 3], 9, 3, "the rest"), "replicas-differ",
     "rank 1 took 3 steps of optimizer 0, rank 0 5"),
    (at([3], 3), at([2], 3), None, ""), (at([3], 3), at([1], 1), None, ""),
    (at([3], 3, 3, "the rest"), at([3], 9, 3, "the rest"), None, "")])
def test_a_rank_that_goes_on_without_a_step_is_told_from_one_that_is_late(
        first, second, code, says):
    found = uneven({0: first, 1: second})
    assert (found.code, found.says) == (code, says) if code else found is None
    assert uneven({0: {"step": 1, "in": "step"}, 1: first}) is None


def test_a_rank_that_gets_its_weights_from_another_needs_no_step():
    mine, others = at([3], 3), {**at([], 3), "wanders": True}
    assert uneven({0: mine, 1: others}) is None
    assert served({0: mine, 1: others}) == [1]
    assert served({0: {**mine, "wanders": True}, 1: at([], 3)}) == []


def test_ranks_that_hang_for_want_of_a_step_are_told_so(tmp_path):
    Diary(tmp_path, 0).note(**at([3], 3))
    Diary(tmp_path, 1).note(**at([0], 4))
    found = failure(RankError("time was up", 0, kind="hung"), tmp_path)
    assert (found.code, found.rank) == ("nothing-moved", 1)


def test_an_unused_parameter_is_named_where_torch_counts(tmp_path):
    Diary(tmp_path, 0).note(step=1, silent=["mask"])
    found = failure(RankError(
        "rank 0 raised RuntimeError: Expected to have finished. Parameters that were not "
        "used in producing loss", 0, kind="raised"), tmp_path)
    assert found.says == ("the loss does not depend on mask; rank 0 raised RuntimeError: "
                          "Expected to have finished")


def test_an_end_before_any_diary_is_a_finding(tmp_path):
    found = failure(RankError("the ranks did not meet", kind="hung"), tmp_path)
    assert (found.code, found.says) == ("hang", "the ranks did not meet")


def test_ranks_that_freeze_or_reach_other_parameters_are_told_by_their_diaries(tmp_path):
    in_step(tmp_path, 1, 1)
    hung = RankError("time was up", 0, kind="hung")
    Diary(tmp_path, 1).note(step=1, silent=["b", "c"])
    found = failure(hung, tmp_path)
    assert (found.code, found.number, found.rank, found.step, found.parameter) == (
        "unused-parameter", 2, 1, 1, "b")
    assert found.says.startswith("the loss of rank 1 does not depend on b, c")
    Diary(tmp_path, 0).note(step=1, frozen=["a"])
    found = failure(hung, tmp_path)
    assert (found.code, found.says) == (
        "frozen", "a want no gradient on rank 0, unlike others")
    for rank in range(2):  # all alike: no mistake
        Diary(tmp_path, rank).note(step=1, frozen=["a"], silent=["b"])
    assert failure(hung, tmp_path).code == "hang"


@pytest.mark.parametrize("words, code", [
    ("rank 1 raised RuntimeError: DDP expects same model across all ranks", "start-differs"),
    ("rank 1 raised RuntimeError: parameters that were not used in producing loss",
     "unused-parameter"),
    ("rank 1 raised RuntimeError: Received data size doesn't match expected size",
     "mismatch")])
def test_torchs_own_words_are_known(tmp_path, words, code):
    in_step(tmp_path, 1, 1)
    assert failure(RankError(words, 1, kind="raised"), tmp_path).code == code


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


def test_a_diary_says_where_its_rank_is(tmp_path):
    Diary(tmp_path / "new", 0)
    Diary(tmp_path / "new", 11).note(step=2, forwards=1)
    assert read_diaries(tmp_path / "new") == {
        0: {"step": None, "forwards": 0, "in": "make_model"},
        11: {"step": 2, "forwards": 1, "in": "make_model"}}
    assert read_diaries(tmp_path / "none") == {}
