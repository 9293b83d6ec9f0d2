"""`audit_step` takes a person's own code: what it refuses, and how a run that fails is told."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import audit_step


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
    report = audit_step(ddp, rows, unequal, steps=1, timeout=8)
    assert time.monotonic() < begin + 60
    [found] = report.findings
    assert found.code == "hang" and "rank 0" in found.says
    assert "a rank has come to its end" in found.cause


def raises(model, optimizer, X, y):
    raise ValueError("of the step")


def test_an_error_of_the_step_is_told_with_its_traceback():
    report = audit_step(ddp, rows, raises, steps=1)
    assert [f.code for f in report.findings] == ["exception"]
    assert "ValueError: of the step" in report.findings[0].says
    assert "in raises" in report.details
    assert "comparison with world size 1, which ended" in report.not_looked_at[0]


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
        audit_step(**right | more)


@pytest.mark.parametrize(
    "more, looked_at, not_looked_at",
    [
        ({}, "beside one device's", "mistakes that one device makes"),
        ({"reference": ordinary}, "beside one device's", "that `reference` makes"),
        ({"make_batch": None}, "beside rank 0's", "ended: rank 0 raised"),
        ({"world_size": 1}, "", "a comparison: one rank has none beside it"),
    ],
    ids=["plain", "with a reference", "ranks alone", "one rank"],
)
def test_a_report_without_a_finding_says_what_was_compared(
    more, looked_at, not_looked_at
):
    step = own_rows if "make_batch" in more else ordinary
    right = {"make_model": ddp, "make_batch": rows, "step": step}
    report = audit_step(**right | more)
    assert report.findings == []
    said = "".join(report.looked_at)
    assert looked_at in said and ("2 parameters" in said) == (looked_at != "")
    assert len(report.not_looked_at) == 1 and not_looked_at in report.not_looked_at[0]


def own_rows(model, optimizer):
    if dist.get_world_size() == 1:
        raise ValueError("this loader deals to two ranks")
    ordinary(model, optimizer, *rows(0))
