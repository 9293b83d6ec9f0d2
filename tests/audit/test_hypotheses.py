"""What a rank applied is told from sketches of three ranks' gradients."""

import pytest
import torch

from manual_dp.audit.fingerprint import SIZE
from manual_dp.audit.hypotheses import (
    distance,
    explain,
    hypotheses,
    right_on_all,
    single_device,
)
from manual_dp.audit.records import Step

WEIGHTS = [5, 4, 3]
OWN = torch.rand(3, 4, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
OLD, TURNED = OWN.roll(1, 2), OWN.roll(2, 1)
RIGHT, MEANS = OWN.sum(0) / 12, [own / n for own, n in zip(OWN, WEIGHTS)]


def explained(used, before=None, turned=False):
    """Return the fit of rank 0, which applied `used`; the others are right."""
    notes = [Step(own=own, weight=n, used=RIGHT) for own, n in zip(OWN, WEIGHTS)]
    notes[0].used = used
    for note, own in zip(notes, TURNED if turned else ()):
        note.turned = {"of others": own, "shifted": 2 * own + OWN[0]}
    if before is not None:
        before = [Step(used=before)] * 3
    [first, *others] = explain(notes, before)
    assert [fit.hypothesis.code for fit in others] == ["factor"] * 2
    right = first.hypothesis.code == "factor" and not first.parts
    assert right_on_all(notes) is (right or not used.any())  # 0 times it is a multiple
    return first


@pytest.mark.parametrize("used, code, numbers", [
    (3 * RIGHT, "factor", [3]), (sum(MEANS) / 3, "uneven-shards", [1]),
    (-MEANS[0], "not-synchronised", [-1]), (MEANS[1], "one-rank", [1]),
    ((OWN[0] + OWN[2]) / 12, "rank-left-out", [1]),
    (2 * OWN[0] + OWN[1] + OWN[2], "counted-twice", [2, 1, 1]),
    (0 * RIGHT, "nothing-moved", [0])])
def test_a_gradient_is_known_by_its_sketch(used, code, numbers):
    fit = explained(used)
    assert fit.hypothesis.code == code
    assert fit.numbers == pytest.approx(numbers, abs=1e-9) and fit.parts == {}


def test_hypotheses_are_tried_in_order_and_the_first_that_is_near_is_the_answer():
    notes = [Step(own=own, weight=n, used=sum(MEANS) / 3) for own, n in zip(OWN, WEIGHTS)]
    assert torch.equal(single_device(notes), RIGHT)
    tried = hypotheses(1, notes)
    far = [distance(notes[1].applied, one.basis) for one in tried]
    assert [one.code for one in tried] == [
        "factor", "uneven-shards", "not-synchronised", *["one-rank"] * 2,
        *["rank-left-out"] * 6, "counted-twice"]
    near = [one.code for one, away in zip(tried, far) if away < 1e-12]
    assert near == ["uneven-shards", "counted-twice"]  # which may take any numbers
    assert min(away for away in far if away > 1e-12) > 0.01
    assert explain(notes)[1].hypothesis.code == "uneven-shards"


def test_a_distance_is_a_part_of_what_was_applied():
    one, other = torch.eye(4, dtype=torch.float64)[:2]
    assert distance(2 * one, [one]) == 0 and distance(one, [other]) == 1
    assert distance(3 * one + 4 * other, [one]) == pytest.approx(0.8)
    assert distance(one + other, [one, other]) == pytest.approx(0, abs=1e-15)
    assert distance(one, [0 * one]) == torch.inf


def test_a_mean_over_something_else_than_rows_is_not_called_so():
    def says(weights):
        notes = [Step(own=own, weight=n, used=RIGHT, rows=[[0] * 3])
                 for own, n in zip(OWN, weights)]
        return hypotheses(0, notes)[1].says.partition(" count alike")[0]
    assert says([3, 3, 3]) == "a mean of means: shards of [3, 3, 3] rows"
    assert says([5, 4, 3]) == "a mean of means: shards of [5, 4, 3] terms of the loss"


def test_the_step_before_and_shifted_targets_are_known():
    fit = explained(RIGHT + 0.5 * OLD[0], before=OLD[0])
    assert fit.hypothesis.code == "stale" and fit.numbers == pytest.approx([1, 0.5])
    fit = explained(TURNED.sum(0), turned=True)
    assert (fit.hypothesis.code, fit.hypothesis.number) == ("labels", 1)
    assert fit.hypothesis.says.format(who="rank 0") == (
        "rank 0: the gradient of targets of others")


def test_what_nothing_explains_says_how_much():
    fit = explained(OWN[0] ** 3)
    [number] = fit.numbers
    says = fit.hypothesis.says.format(who="rank 0", last=number)
    assert fit.hypothesis.code == "gradient" and 0.01 < number < 1
    assert says == f"rank 0: {number:.1e} of the gradient is not explained"


def test_a_single_number_which_fits_all_says_what_the_others_say():
    notes = [Step(own=own.clone(), weight=n) for own, n in zip(OWN, WEIGHTS)]
    for note in notes:
        note.own[3, 1:] = 0  # a parameter of one number
    mixed = single_device(notes)
    mixed[2:] = notes[0].own[2:] / WEIGHTS[0]
    for note in notes:
        note.used = mixed
    parts = explain(notes)[0].parts
    assert {i: one.code for i, one in parts.items()} == {
        2: "not-synchronised", 3: "not-synchronised"}


def test_the_parameters_that_differ_are_told_from_those_that_do_not():
    used = 2 * RIGHT
    used[1], used[3] = 0, 2 * MEANS[0][3]
    fit = explained(used)
    assert fit.hypothesis.code == "factor" and fit.numbers == pytest.approx([2])
    assert {i: part.code for i, part in fit.parts.items()} == {
        1: "nothing-moved", 3: "not-synchronised"}
