"""What ranks applied is right, or is named; the same code alone is the measure."""

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from manual_dp.audit import audit
from manual_dp.audit.fingerprint import SIZE
from manual_dp.audit.gradient import gradients
from manual_dp.audit.records import Evidence, Run, Step
from tests.support.broken_training import average, ddp, fair_loss, net, rows, shard

WEIGHTS = [5, 4]
OWN = torch.rand(2, 3, SIZE, dtype=torch.float64,
                 generator=torch.Generator().manual_seed(0))
RIGHT, MEANS = OWN.sum(0) / 9, [own / n for own, n in zip(OWN, WEIGHTS)]


def found(*used, lr=None, pieces=1, by_hand=False):
    """Return the findings where rank i applied used[i], in one step without a base."""
    runs = []
    for own, n, one in zip(OWN, WEIGHTS, used):
        lists = [range(n)] + [[]] * (pieces - 1)
        note = Step(0, own=own, weight=n, size=9, all_rows=lists, rows=lists,
                    before=[0], after=[1])
        note.step, note.used = one, None if by_hand else one
        runs.append(Run(["a", "b", "c"], [(4, 4)] * 3, [note]))
    return gradients(Evidence(runs, lr=lr))


@pytest.mark.parametrize("used, code, number", [
    ([2 * RIGHT] * 2, "sum", 2), ([RIGHT / 2] * 2, "averaged-twice", 1 / 2),
    ([RIGHT * 9 / 5] * 2, "factor", 9 / 5), ([RIGHT, 3 * RIGHT], "factor", 3),
    ([sum(MEANS) / 2] * 2, "uneven-shards", 10 / 9), (MEANS, "not-synchronised", 1),
    ([RIGHT, MEANS[1]], "not-sent-back", 1), ([MEANS[0]] * 2, "one-rank", 5 / 9),
    ([OWN[0] / 9] * 2, "rank-left-out", 1),
    ([OWN[0] + 2 * OWN[1]] * 2, "counted-twice", 2),
    ([OWN[0] + 1.5 * OWN[1]] * 2, "gradient", 1.5),
    ([OWN[0] - OWN[1]] * 2, "gradient", -1)])
def test_each_way_to_go_wrong_has_its_name_and_number(used, code, number):
    [one] = found(*used)
    assert (one.code, one.number) == (code, pytest.approx(number, rel=1e-9))


def test_the_right_gradient_has_no_finding():
    assert found(RIGHT, RIGHT) == []
    assert found(0.1 * RIGHT, 0.1 * RIGHT, lr=0.1, by_hand=True) == []


def test_a_divisor_is_named_and_so_are_micro_batches():
    assert found(RIGHT * 9 / 5, RIGHT * 9 / 5)[0].says == (
        "the step is 1.8 times a single device's: as if divided by 5 rows, of 9, a "
        "shard's")
    [one] = found(3 * RIGHT, 3 * RIGHT, pieces=3)
    assert (one.code, one.number) == ("accumulation", 3)


def test_a_step_by_hand_is_judged_by_lr():
    assert found(RIGHT, RIGHT, by_hand=True) == []
    [one] = found(0.1 * RIGHT, 0.2 * RIGHT, lr=0.1, by_hand=True)
    assert (one.code, one.number, one.rank) == ("rates-differ", pytest.approx(2), 1)


# the same code at world size 1 is the measure

def half_loss(model, optimizer, X, y):
    optimizer.zero_grad()
    (0.5 * fair_loss(model, X, y)).backward()
    optimizer.step()


def test_a_factor_that_is_there_at_world_size_1_too_is_a_remark():
    report = audit(ddp, rows(13), half_loss, steps=1)
    assert report.findings == []
    assert any("0.5 times the mean loss's, at world size 1 too" in words
               for words in report.remarks)


def only_on_two(model, X, y):
    if dist.get_world_size() == 1:
        raise ValueError("needs two")
    model.zero_grad()
    F.cross_entropy(model(shard(X)), shard(y)).backward()
    average(model)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad


def test_a_step_by_hand_that_nothing_measures_is_not_called_clean():
    report = audit(net, rows(12), only_on_two, steps=1)
    assert report.findings == [] and report.unchecked != []
    told = {"steps": 1, "loss": F.cross_entropy}
    assert audit(net, rows(12), only_on_two, lr=0.1, **told).findings == []
    [one] = audit(net, rows(12), only_on_two, lr=0.2, **told).findings
    assert (one.code, one.number) == ("averaged-twice", pytest.approx(0.5))
