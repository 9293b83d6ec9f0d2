"""Ranks meet over the store; a rank that hangs says which collective it called last."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import audit
from manual_dp.audit.meet import Calls, ended, exchange, last_call
from manual_dp.ranks import RankError, run_ranks


def talk():
    rank = dist.get_rank()
    first = [exchange("a", (rank, t)) for t in range(3)]
    return first[-1], exchange("b", torch.tensor(rank))


def test_all_ranks_hear_what_all_say_in_order():
    for said, tensors in run_ranks(talk, 3):
        assert said == [(0, 2), (1, 2), (2, 2)]
        assert [int(one) for one in tensors] == [0, 1, 2]


def silent():
    if dist.get_rank() < 2:
        with pytest.raises(RuntimeError) as error:
            exchange("a", 0, timeout=0.5)
        return str(error.value)
    time.sleep(1)


def test_who_does_not_come_is_said():
    assert run_ranks(silent, 3)[0] == "a: rank 2 did not come to call 1 within 0.5 s"


def calls():
    before = last_call()
    dist.all_reduce(torch.ones(2, 3))
    return before, last_call()


def test_the_last_collective_is_told_with_its_line():
    before, after = run_ranks(calls, 2)[0]
    assert before == "it has called no collective"
    assert after == "collective 1 is all_reduce of [2, 3] in test_meet.py, line 42"


def parted(folder):
    watching = Calls(folder, dist.get_rank(), 1)
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
        assert "rank 0: collective 2 is barrier in test_meet.py, line 57" in found.says
        assert "rank 1: collective 2 is broadcast of [5] in test_meet.py, line 59" in (
            found.says
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
        (
            "rank 1 raised RuntimeError: DDP expects same model across all ranks",
            "raised",
            "",
            "start-differs",
            "same model",
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


# the same in an audit


def ddp():
    model = DistributedDataParallel(nn.Linear(5, 3))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def rows(t):
    generator = torch.Generator().manual_seed(t)
    return torch.rand(8, 5, generator=generator), torch.rand(8, 3, generator=generator)


def ordinary(model, optimizer, X, y):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    optimizer.zero_grad()
    (model(X[mine]) - y[mine]).square().mean().backward()
    optimizer.step()


def unequal(model, optimizer, X, y):
    for _ in range(1 + (dist.get_rank() == 0 and dist.get_world_size() > 1)):
        ordinary(model, optimizer, X, y)


def test_unequal_batches_end_within_the_timeout_and_name_the_calls():
    begin = time.monotonic()
    report = audit(ddp, rows, unequal, steps=1, timeout=8)
    assert time.monotonic() < begin + 60
    [found] = report.findings
    assert (
        found.code == "mismatch"
        or found.code == "hang"
        and ("rank 0: collective" in found.says)
    )


def raises(model, optimizer, X, y):
    raise ValueError("of the step")


def test_an_error_of_the_step_is_told_with_its_traceback():
    report = audit(ddp, rows, raises, steps=1)
    assert [f.code for f in report.findings] == ["exception"]
    assert "ValueError: of the step" in report.findings[0].says
    assert "in raises" in report.details
    assert "comparison with world size 1, which ended" in report.unchecked[0]


@pytest.mark.parametrize(
    "more, error, words",
    [
        ({"make_model": 3}, TypeError, "make_model must be callable, got int"),
        ({"reference": 3}, TypeError, "reference must be callable, got int"),
        (
            {"world_size": 0},
            ValueError,
            "world_size must be a whole number from 1, got 0",
        ),
        ({"steps": 1.5}, ValueError, "steps must be a whole number from 1, got 1.5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(more, error, words):
    right = {"make_model": ddp, "make_batch": rows, "step": ordinary}
    with pytest.raises(error, match=words):
        audit(**right | more)
