"""`watch` follows a script's first steps, says what it saw, and then goes away."""

import contextlib
import io
import pickle
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import script, watch
from manual_dp.audit.meeting import NotTogether
from manual_dp.ranks import run_ranks
from tests.support.broken_training import average, mean_loss, net, rows, sgd

DATA = rows(24)(0)


def train(model, optimizer, steps=4, change=None):
    """Train as a script does: fixed rows a rank, from a sampler."""
    X, y = DATA[0].float(), DATA[1]
    sampler = DistributedSampler(range(24))
    for step in range(steps):
        if step % 3 == 0:
            sampler.set_epoch(step)
            batches = torch.tensor(list(sampler)).chunk(3)
        mine = batches[step % 3]
        optimizer.zero_grad()
        mean_loss(model, X[mine], y[mine]).backward()
        if change:
            change(model, optimizer)
        optimizer.step()


def followed(change=None, wrap=DistributedDataParallel, taken=4, world_size=2, **options):
    """Return what rank 0 printed and of each rank whether it has a report, and hooks."""
    def rank():
        model, optimizer = sgd(wrap(net()))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            seen = watch(model, optimizer, **options)
            train(model, optimizer, taken, change)
            seen.finish()
        hooks = [hook for m in model.modules() for hook in m._forward_pre_hooks]
        return out.getvalue(), seen.report and seen.report.findings, hooks
    return run_ranks(rank, world_size)


def test_a_right_script_has_no_finding_and_rank_0_says_so():
    (said, findings, hooks), (nothing, none, more) = followed()
    assert said.startswith("audit: 3 steps on 2 ranks, in the script's precision")
    assert "no finding, but not all was checked" in said
    assert "not checked       the rows that no rank saw" in said
    assert (findings, nothing, none, hooks, more) == ([], "", None, [], [])


def halve_on_rank_1(model, optimizer):
    if dist.get_rank() == 1:
        optimizer.param_groups[0]["lr"] = 0.05


def clip_first(model, optimizer):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    average(model)


def once_more(model, optimizer):
    """Take two micro-batches more; for the second, gradients are cleared."""
    for part in (slice(4), slice(4, 8)):
        optimizer.zero_grad()
        (mean_loss(model, DATA[0].float()[part], DATA[1][part]) / 3).backward()


def leave_out_on_rank_1(model, optimizer):
    if dist.get_rank() == 1:
        next(model.parameters()).grad = None


def add_noise_on_each_rank(model, optimizer):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for p in model.parameters():
        p.grad += torch.randn(p.shape, generator=generator)


def overflowing(model, optimizer):
    """Drop a gradient that is not finite, as a scaler does; then go on."""
    (mean_loss(model, DATA[0].float()[:4], DATA[1][:4]) * torch.inf).backward()
    optimizer.zero_grad()
    mean_loss(model, DATA[0].float()[:4], DATA[1][:4]).backward()


@pytest.mark.parametrize("change, wrap, code", [
    (None, lambda module: module, "not-synchronised"),
    (once_more, DistributedDataParallel, "accumulation"),
    (halve_on_rank_1, DistributedDataParallel, "rates-differ"),
    (clip_first, lambda module: module, "clip"),
    (leave_out_on_rank_1, DistributedDataParallel, "not-synchronised"),
    (add_noise_on_each_rank, DistributedDataParallel, "replicas-differ"),
    (lambda model, _: average(model, skip=[1]), lambda module: module,
     "not-synchronised")])
def test_a_mistake_is_named(change, wrap, code):
    [(said, findings, _), _] = followed(change, wrap)
    assert findings[0].code == code and code in said, said


@pytest.mark.parametrize("seed, found, remarks", [
    (lambda rank: 7, ["random-same"], []),  # once more, after the model
    (lambda rank: 7 + rank, [], []),
    (lambda rank: None, [], ["dropout draws the same masks on every rank: seed + rank once "
                             "the model is made"])])
def test_dropout_that_is_seeded_alike_is_named(seed, found, remarks):
    def rank():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout())
        model, optimizer = sgd(DistributedDataParallel(model))
        if seed(dist.get_rank()) is not None:
            torch.manual_seed(seed(dist.get_rank()))
        seen = watch(model, optimizer)
        train(model, optimizer)
        seen.finish()
        return seen.report and ([f.code for f in seen.report.findings], seen.report.remarks)
    assert run_ranks(rank, 2)[0] == (found, remarks)


def test_masks_that_are_the_same_on_all_ranks_are_said_once():
    def rank():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout())
        model, optimizer = sgd(DistributedDataParallel(model))
        seen = watch(model, optimizer)
        train(model, optimizer, change=lambda *_: torch.manual_seed(7))
        seen.finish()
        return seen.report and ([f.code for f in seen.report.findings], seen.report.remarks)
    assert run_ranks(rank, 2)[0] == (["random-same"], [])


def test_what_is_ignored_is_a_remark_and_one_rank_is_enough():
    [(_, findings, _), _] = followed(halve_on_rank_1, ignore=[
        "rates-differ", "replicas-differ", "state-differs"])
    assert findings == []
    [(said, findings, _)] = followed(world_size=1)
    assert findings == [] and said.startswith("audit: 3 steps on 1 ranks")


@pytest.mark.parametrize("taken", [1, 2])
def test_as_many_steps_are_followed_as_there_are(taken):
    [(said, _, _), _] = followed(taken=taken)
    assert said.startswith(f"audit: {taken} step"), said
    [(said, _, _), _] = followed(steps=taken)
    assert said.startswith(f"audit: {taken} step"), said


def test_ranks_meet_before_the_process_group_is_destroyed():
    def rank():
        model, optimizer = sgd(DistributedDataParallel(net()))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            seen = watch(model, optimizer)
            train(model, optimizer, steps=2)
            dist.destroy_process_group()
        return out.getvalue(), seen.on
    (said, on), nothing = run_ranks(rank, 2)
    assert "1 of 3 steps: the script ended after 2 steps" in said and not on
    assert nothing == ("", False)


def test_a_rank_that_watches_alone_says_so_in_time():
    def rank():
        model, optimizer = sgd(net())
        if dist.get_rank() == 1:
            train(model, optimizer)
            return "", 0.0, None
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            seen = watch(model, optimizer, timeout=2)
            start = time.monotonic()
            train(model, optimizer)
        return errors.getvalue(), time.monotonic() - start, seen.report
    (errors, seconds, report), _ = run_ranks(rank, 2, timeout=40)
    assert "watch: rank 1 did not come to call 1 within 2 s" in errors
    assert "watch must be called on all ranks" in errors
    assert 2 <= seconds < 12 and report is None


def test_an_error_in_a_with_block_is_the_scripts_own_and_nobody_is_waited_for():
    def rank():
        model, optimizer = sgd(net())
        start = time.monotonic()
        try:
            with watch(model, optimizer) as seen:
                raise KeyError("the script's own")
        except KeyError:
            return time.monotonic() - start, seen.on, seen.report
    for seconds, on, report in run_ranks(rank, 2):
        assert seconds < 5 and on is False and report is None


def test_one_is_followed_at_a_time_and_what_does_not_fit_is_refused():
    def rank():
        model, optimizer = sgd(net())
        first, second = watch(model), watch(model, optimizer)
        second.stop()
        with pytest.raises(TypeError, match="needs a module"):
            watch(optimizer)
        return first.on, second.on
    assert run_ranks(rank, 1) == [(False, False)]
    with pytest.raises(RuntimeError, match="no process group"):
        watch(net())


def test_under_the_command_notes_are_left_in_files(tmp_path):
    def rank():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(script.FOLDER, str(tmp_path))
            patch.setenv(f"{script.FOLDER}_STEPS", "2")
            model, optimizer = sgd(DistributedDataParallel(net()))
            watch(model, optimizer)
            train(model, optimizer)
    run_ranks(rank, 2)
    for rank in range(2):
        run = pickle.loads((tmp_path / f"run-{rank}").read_bytes())
        assert [note.t for note in run.steps] == [0, 1] and len(run.samplers) == 1
        assert all(note.used is not None and note.pieces for note in run.steps)
        assert '"in": "the rest' in (tmp_path / f"rank-{rank}").read_text()


def test_a_gradient_that_overflowed_may_be_cleared():
    def rank():
        model, optimizer = sgd(DistributedDataParallel(net()))
        seen = watch(model, optimizer, steps=1)
        with contextlib.redirect_stdout(io.StringIO()):
            optimizer.zero_grad()
            overflowing(model, optimizer)
            optimizer.step()
            seen.finish()
        return seen.report and [f.code for f in seen.report.findings]
    assert "accumulation" not in run_ranks(rank, 2)[0]


def test_a_script_ends_well_where_the_store_went_with_rank_0():
    def rank():
        model, optimizer = sgd(net())
        seen = watch(model, optimizer)
        train(model, optimizer, 2)
        gone = mock.Mock(side_effect=RuntimeError("Broken pipe"))
        late = mock.Mock(side_effect=NotTogether("rank 1 did not come"))
        with mock.patch.object(script.Meeting, "exchange", late), \
                mock.patch.object(seen, "_apart", gone):
            seen.finish()
        return gone.called
    assert run_ranks(rank, 1) == [True]
