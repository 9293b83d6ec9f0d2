"""A script takes the same steps on ranks and on one device, or it is said how not."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import audit, audit_script
from manual_dp.audit.beside import compare
from manual_dp.audit.catalogue import finding
from manual_dp.audit.fingerprint import SIZE
from manual_dp.audit.gradient import MEAN
from manual_dp.audit.heard import DOUBTED
from manual_dp.audit.records import Evidence, Run, Step
from manual_dp.audit.report import Report
from manual_dp.audit.rows import UNSEEN
from manual_dp.audit.setup import Setup
from manual_dp.audit.terms import DIVIDED
from tests.support.stored import ROOT

SCRIPT = ROOT / "tests" / "support" / "scripts" / "own_loss.py"
BESIDE = "beside one device in float64"


def told(*words, **options):
    """Return the codes of the report on the script, and its text in one line."""
    report = audit_script([SCRIPT, *words], timeout=100, **options)
    return [f.code for f in report.findings], " ".join(str(report).split())


@pytest.mark.parametrize("words", [
    [], ["fixed"], ["bare"], ["numpy", "half"], ["norms", "fixed"], ["noise", "weighed"],
    ["noise", "weighed", "fixed"], ["synced"], ["synced", "fixed"], ["plain", "fixed"]])
def test_a_right_script_is_one_devices_to_the_last_digits(words):
    codes, text = told(*words)
    assert not codes and BESIDE in text and text.count("clean") == 1, text


@pytest.mark.parametrize("words, code", [
    (["divided"], "averaged-twice"), (["summed"], "sum"), (["rate"], "learning-rate"),
    (["decay"], "settings"), (["norm", "fixed"], "clip"), (["rolled"], "local"),
    (["rolled", "bare"], "local"), (["local", "norms", "noise"], "uneven-shards"),
    (["rolled", "fixed", "norms"], "local"), (["detached"], "local"),
    (["synced", "rolled"], "local"), (["divided", "fixed"], "averaged-twice")])
def test_what_only_one_device_can_tell_is_found(words, code):
    codes, text = told(*words)
    assert codes[:1] == [code], text
    assert "seen beside one device, in float64" in text
    assert (DIVIDED in text) == (code not in (
        "sum", "averaged-twice", "uneven-shards")), text  # or it was told


@pytest.mark.parametrize("words", [["plain"], ["plain", "fixed", "noise"]])
def test_labels_that_are_not_split_are_named(words):
    codes, text = told(*words, "unsplit")
    assert codes == ["labels"] and "targets of cross_entropy in own_loss.py" in text, text


def test_an_all_reduce_that_hands_no_gradient_back_is_named():
    codes, text = told("cut")
    assert codes == ["local"], text
    assert "device: dist.all_reduce hands no gradient back to what it is given" in text


@pytest.mark.parametrize("words", [["generator"], ["generator", "fixed"]])
def test_steps_that_draw_with_a_generator_of_their_own_are_not_compared(words):
    codes, text = told(*words)
    assert not codes and DIVIDED in text
    assert "not beside one device: the step draws random numbers" in text


def test_norms_of_all_ranks_beside_norms_of_a_ranks_rows_are_not_compared():
    codes, text = told("synced", "mixed")
    assert not codes and "beside" not in text and DIVIDED in text


def test_what_ranks_draw_by_seeds_of_their_own_before_the_steps_is_not_compared():
    codes, text = told("teacher")  # with seeds that are alike, it would be the same
    assert not codes and DIVIDED in text and "no finding, but" in text
    assert "not beside one device: before its steps a rank draws numbers by a seed" in text


def test_a_script_that_cannot_be_alone_is_judged_by_its_ranks():
    codes, text = told("ranks", "divided")
    assert not codes and "beside" not in text and "no finding, but" in text


def test_one_device_is_not_asked_where_the_ranks_tell_enough_or_nobody_wants_it():
    codes, text = told("rate", alone=False)
    assert not codes and "beside" not in text and DIVIDED in text


def augmented(local):
    """Return the arguments of an audit of a step that adds noise to its rows."""
    def make():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(6, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(t):
        draws = torch.Generator().manual_seed(t)
        return torch.randn(8, 6, generator=draws), torch.arange(8) % 3

    def step(model, optimizer, X, y):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        X, y = X[rank::world_size], y[rank::world_size]
        X = X + 0.1 * torch.randn_like(X) + 0.1 * np.random.rand()
        X = X - X.mean() if local else X
        optimizer.zero_grad()
        functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return {"make_model": make, "make_batch": batch, "step": step}


def test_an_audit_draws_fixed_numbers_where_others_would_be_drawn_alone():
    report = audit(**augmented(local=False))
    assert not report.findings and "with fixed numbers" in report.precision, report
    report = audit(**augmented(local=True))
    assert [f.code for f in report.findings] == ["local"], report
    assert "with fixed numbers for what is drawn" in report.remarks[0]


CAME = torch.rand(2, 2, SIZE, dtype=torch.float64,
                  generator=torch.Generator().manual_seed(0)) + 0.1


def taken(world_size, used, numbers=None, **changes):
    """Return the runs of so many ranks, of one step each that used this gradient."""
    each = 8 // world_size if numbers is None else numbers
    first = 8 - each * world_size  # so that all runs take the last of eight rows
    steps = [Step(0, used=used, step=used, weights=1 - used, blur=1.0, kind="SGD",
                  numbers=each, all_rows=[[*range(first + rank * each,
                                                  first + rank * each + each)]],
                  pieces=[CAME[rank] if world_size > 1 else used], before=[0, 0], after=[1, 1],
                  rates={0: 1.0, 1: 1.0}, close=1e-7, **changes)
             for rank in range(world_size)]
    for one in steps:
        one.start = one.setup = Setup(names=["a", "b"], shapes=[(4,)] * 2)
    return [Run(["a", "b"], [(4,)] * 2, [one]) for one in steps]


def reported(run, unchecked=(MEAN, UNSEEN, DIVIDED), findings=()):
    """Return the codes, and what is left unchecked, after a comparison."""
    known = Evidence(taken(2, CAME.sum(0) / 2))
    report = Report([*findings], [], 2, 1, [f"{words}: why" for words in unchecked],
                    evidence=known)
    compare(report, run, 2)
    return [f.code for f in report.findings], report.unchecked, report


def test_the_same_gradient_answers_what_was_not_checked():
    right = CAME.sum(0) / 2
    found, left, report = reported(lambda world_size, times, fixes: taken(
        world_size, right))
    assert (found, left) == ([], []) and BESIDE in report.precision


def test_another_one_is_a_finding_with_its_number():
    found, left, report = reported(lambda world_size, times, fixes: taken(
        world_size, CAME.sum(0) * (1 if world_size == 2 else 0.5)))
    assert found == ["sum"] and left == [f"{words}: why" for words in (MEAN, UNSEEN)]
    assert report.remarks[0].startswith("seen beside one device, in float64")


@pytest.mark.parametrize("alone, codes", [(1, []), (0.5, ["sum"]), (None, ["factor"])])
def test_a_finding_that_is_right_for_some_losses_is_decided(alone, codes):
    doubted = finding("factor", 2, f"twice: {DOUBTED}")
    found, left, report = reported(lambda world_size, times, fixes: None if (
        alone is None) else taken(world_size, CAME.sum(0) * (
            1 if world_size == 2 else alone)), findings=[doubted])
    assert found == codes
    found, *_ = reported(lambda *_: taken(1, CAME[0]),
                         findings=[doubted, finding("stale", 1, "sure")])
    assert found == ["factor", "stale"]


def test_one_device_is_given_the_rows_of_all_ranks():
    asked = []

    def run(world_size, times, fixes):
        asked.append((world_size, times, fixes))
        return taken(world_size, CAME.sum(0) / 2, 4 * times)
    assert reported(run)[:2] == ([], [])
    assert asked == [(2, 1, False), (1, 1, False), (1, 2, False)]


def test_where_steps_draw_fixed_numbers_may_show_a_mistake_and_prove_nothing():
    def run(right, asked=()):
        def take(world_size, times, fixes):
            state = 0 if fixes else world_size
            used = CAME.sum(0) / 2 * (1 if right and fixes or world_size == 2 else 0.7)
            return taken(world_size, used, random=((False, state),))
        return take
    found, left, _ = reported(run(right=True))
    assert not found and len(left) == 3
    assert "not beside one device: the step draws random numbers" in left[0]
    found, _, _ = reported(run(right=False))
    assert found == ["factor"]


@pytest.mark.parametrize("run", [
    lambda *_: None, lambda world_size, *_: taken(2, CAME[0]) if world_size == 2 else None,
    lambda world_size, *_: [Run(["c"], [(4,)], run.steps) if world_size == 1 else run
                            for run in taken(world_size, CAME[0])]])
def test_what_cannot_be_run_is_left_as_it_was(run):
    found, left, report = reported(run)
    assert not found and left == [f"{words}: why" for words in (MEAN, UNSEEN, DIVIDED)]
    assert report.precision == "float64"
