"""notebooks/programs/published.py: what published mistakes cost, and what sees them."""

import json
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from programs import published  # notebooks/programs
from torch import nn
from torch.nn import functional as F

from manual_dp.audit import audit_step
from manual_dp.ranks import ring_allreduce, run_ranks
from tests.support.lessons import FOLDER, source

SEEDS = range(2)


@pytest.fixture(scope="module")
def page():
    """Return what lesson 24 defines, for two ranks and two micro-batches."""
    nb = json.loads((FOLDER / "24_wrong_on_purpose.ipynb").read_text(encoding="utf-8"))
    cells = {cell["id"]: source(cell) for cell in nb["cells"]}
    space = {
        "__name__": "page",
        "F": F,
        "dist": dist,
        "grad_accum": 2,
        "loss": F.cross_entropy,
        "mine": lambda X: X[dist.get_rank() :: dist.get_world_size()],
        "nn": nn,
        "nullcontext": nullcontext,
        "torch": torch,
    }
    for name in ("rings", "count-define"):
        exec(cells[name], space)  # noqa: S102
    return space


@pytest.mark.parametrize("seed", SEEDS)
def test_who_clips_too_early_ends_lower_on_its_rows_and_higher_on_new_ones(seed):
    def run(first):
        losses, lengths, loss, _ = published.clipped(published.update, first, seed)
        return losses[-1], lengths, loss

    (wrong, short, new_wrong), (right, long, new_right) = run(False), run(True)
    assert wrong < right and new_wrong > new_right
    assert max(short) == pytest.approx(1 / 65536, rel=1e-4) == min(short)
    assert long[-1] < long[0] / 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mistake_makes_more_new_rows_wrong(seed):
    assert published.alone(seed, 4)[1] > 1.4 * published.alone(seed, 1)[1]
    shifted = [published.shifted(seed, 4, together=one)[1] for one in (False, True)]
    assert shifted[0] > shifted[1] + 2


def test_adamw_hardly_notices_a_loss_that_is_not_divided():
    def wrong(optim, lr, right):
        return published.accumulate(0, optim, lr, right, grad_accum=2)[1]

    SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
    assert wrong(SGD, 1, False) > wrong(SGD, 1, True) + 0.5
    assert wrong(AdamW, 0.03, False) == pytest.approx(wrong(AdamW, 0.03, True), abs=0.6)


def test_rings_say_what_they_send_and_what_ranks_end_with(page):
    _, held, last, size = published.rings(page["whole_ring"], 4)
    assert (held, last, size) == ([1, 2, 3, 4], (10, 10, 10, 10), 6 * 960)
    _, _, last, size = published.rings(ring_allreduce, 4)
    assert (last, size) == ((10, 10, 10, 10), 6 * 240)


def test_batch_norm_keeps_rank_0s_mean():
    assert run_ranks(published.means, 3) == [(1, 1), (2, 1), (3, 1)]


def test_words_that_do_not_stand_in_a_function_are_refused():
    with pytest.raises(ValueError, match="'nothing' does not stand"):
        published.changed(published.plain_step, other=("nothing", "more"))


def test_the_judge_counts_meetings(page, capsys):
    published.judge_steps({"guide": page["guide_step"]}, 2, 32)
    said = capsys.readouterr().out
    assert "% off, met once" in said and "audit: " in said

    def often(model, optimizer, X, y):
        part = slice(dist.get_rank(), None, dist.get_world_size())
        for X_part, y_part in zip(X[part].chunk(2), y[part].chunk(2)):
            (F.cross_entropy(model(X_part), y_part) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    published.judge_steps({"often": often}, 2, 32)
    said = capsys.readouterr().out
    assert said.startswith("often: right, met 2 times for one step: once is enough")


def test_the_audit_objects_to_the_tutorials_ring_and_not_to_whole_tensors(page):
    X, y, *_ = published.rows(count=32)

    def plain():
        model = published.layer()
        return model, torch.optim.SGD(model.parameters(), 1.0)

    def found(ring):
        def step(model, optimizer, X, y):
            part = slice(dist.get_rank(), None, dist.get_world_size())
            optimizer.zero_grad()
            F.cross_entropy(model(X[part]), y[part]).backward()
            for p in model.parameters():
                ring(p.grad.div_(dist.get_world_size()))
            optimizer.step()

        report = audit_step(
            plain, lambda t: (X, y), step, 2, reference=published.plain_step
        )
        return [one.code for one in report.findings]

    def tutorial(grad):
        page["tutorial_ring"](grad.clone(), grad.zero_())

    assert found(page["whole_ring"]) == []
    assert found(tutorial) == ["not-synchronised"]
