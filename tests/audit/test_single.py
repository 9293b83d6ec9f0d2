"""A step is the one of the same code at world size 1, or it is said how it differs."""

from dataclasses import replace

import pytest
import torch

from manual_dp.audit.fingerprint import SIZE
from manual_dp.audit.records import Evidence, Part, Run, Step
from manual_dp.audit.setup import Setup
from manual_dp.audit.single import beside, compared, unlike

CAME = torch.rand(2, 3, SIZE, dtype=torch.float64,
                  generator=torch.Generator().manual_seed(0)) + 0.1
RIGHT = CAME.sum(0) / 2
START = torch.ones(3, SIZE, dtype=torch.float64)


def note(used, rows=((0, 1),), came=None, **changes):
    return replace(Step(
        0, used=used, step=0.1 * used, weights=START - 0.1 * used, kind="SGD",
        blur=float(START.norm()), all_rows=[list(rows[0])], pieces=[came], numbers=10,
        rates={0: 0.1, 1: 0.1, 2: 0.1}, before=[0], after=[1]), **changes)


def evidence(used, alone=RIGHT, on_ranks=None, at_one=None, norms=0):
    """Return notes and evidence: two ranks applied `used`, one device `alone`."""
    notes = [note(used, [[rank]], came, numbers=5, **(on_ranks or {}))
             for rank, came in enumerate(CAME)]
    for one in notes:
        one.start = Setup(norms=norms)
    runs = [Run(["a", "b", "c"], [(4, 4)] * 3, [one]) for one in notes]
    alone = Run(["a", "b", "c"], [(4, 4)] * 3, [
        note(alone, [[0, 1]], alone, **(at_one or {}))])
    return notes, Evidence(runs, alone)


def test_the_same_step_is_the_same():
    assert compared(*evidence(RIGHT)) == (True, "")
    assert compared(*evidence(RIGHT * (1 + 1e-12)))[0] is True
    assert compared(*evidence(RIGHT * (1 + 1e-5)))[0] is False


@pytest.mark.parametrize("options, words", [
    ({"on_ranks": {"drawn": [7]}}, "draws random numbers"),
    ({"at_one": {"drawn": [7]}}, "draws random numbers"),
    ({"at_one": {"numbers": 11}}, "takes other rows"),
    ({"at_one": {"all_rows": [[0, 2]]}}, "takes other rows"),
    ({"at_one": {"weights": START}}, "weights before the step are others"),
    ({"on_ranks": {"wraps": "join"}}, "under Join"),
    ({"on_ranks": {"wraps": "fp16_compress"}}, "by the hook fp16_compress"),
    ({"norms": 1}, "batch norm takes the statistics")])
def test_what_cannot_be_compared_says_why(options, words):
    same, why = compared(*evidence(2 * RIGHT, **options))
    assert same is None and words in why


def test_without_world_size_1_nothing_is_compared():
    notes, found = evidence(RIGHT)
    assert compared(notes, Evidence(found.runs))[0] is None
    assert compared([replace(one, t=None) for one in notes], found)[0] is None


def test_adam_hides_a_factor_in_its_step_but_not_in_its_gradient():
    notes, found = evidence(RIGHT, at_one={"kind": "Adam"})
    notes = [replace(one, kind="Adam", used=2 * RIGHT) for one in notes]
    assert compared(notes, found)[0] is False


def averages(mine, fixed=False, rate=1.0):
    """Return the codes where an average of weights is 1 on one device, `mine` here."""
    notes, found = evidence(RIGHT, on_ranks={
        "step": 0.1 * rate * RIGHT, "weights": START - 0.1 * rate * RIGHT})
    found.fixed = fixed
    for one, number in [(note, mine) for note in notes] + [(found.alone[0][0], 1.0)]:
        one.setup = Setup(sketches={"average": number * torch.ones(SIZE)})
    return [f.code for f in beside(found)]


def test_an_average_of_the_same_weights_is_the_same():
    assert averages(1.0) == averages(1.0, fixed=True) == []
    assert averages(1.1) == averages(1.1, fixed=True) == ["state-differs"]
    assert averages(1.1, fixed=True, rate=2.0) == []  # of other weights


@pytest.mark.parametrize("used, code, number", [
    (2 * RIGHT, "sum", 2), (RIGHT / 2, "averaged-twice", 1 / 2),
    (RIGHT * 1.7, "factor", 1.7)])
def test_a_multiple_has_the_name_of_its_number(used, code, number):
    [one] = unlike(*evidence(used))
    assert (one.code, one.number) == (code, pytest.approx(number, rel=1e-9))


def test_ranks_that_count_alike_and_should_not_are_uneven():
    right = (2 * CAME[0] + CAME[1]) / 3
    [one] = unlike(*evidence(RIGHT, right))
    assert (one.code, one.number) == ("uneven-shards", pytest.approx(4 / 3))
    assert one.says.endswith("on a single device they count 2, 1 times")


def test_what_no_mixture_explains_is_something_over_a_ranks_own_rows():
    other = RIGHT ** 2
    [one] = unlike(*evidence(RIGHT, other))
    assert one.code == "local"


def test_equal_gradients_are_left_to_later_rules():
    assert unlike(*evidence(RIGHT, on_ranks={"step": RIGHT})) == []


def aimed(*aims, shape=(3,), place="line 1"):
    return [Part(place, len(aims), 1.0, 1, False, 1, aims, shape)]


NO_MIXTURE = torch.rand(3, SIZE, dtype=torch.float64,
                        generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mine, its, rows, code", [
    ([aimed(1, 2), aimed(1, 2)], aimed(1, 2, 3, 4), None, "labels"),
    ([aimed(1, 2), aimed(1, 2) + aimed(9, place="line 2")],
     aimed(1, 2, 3, 4) + aimed(9, place="line 2"), None, "labels"),
    ([aimed(4, 2), aimed(3, 1)], aimed(1, 2, 3, 4), None, "local"),
    ([aimed(1, 2), aimed(5, 6)], aimed(1, 2, 3, 4), None, "local"),
    ([aimed(1, 2), aimed(1, 2)], aimed(1, 2, 3, 4, shape=(6,)), None, "local"),
    ([aimed(1, 2), aimed(1)], aimed(1, 2, 3, 4), None, "local"),
    ([aimed(1, 2), aimed(1, 2)], aimed(1, 2, 3, 4), [None], "local"),
    ([aimed(1, 2), aimed(1, 2)], aimed(1, 2, 3, 4), [[0, 1]], "local"),
    ([[], []], [], None, "local")],
    ids=["not split", "one of two losses", "in another order", "made of a rank's rows",
         "as many classes as rows", "fewer", "of rows that nobody knows",
         "of all rows on all ranks", "no losses"])
def test_targets_of_other_rows_are_told_from_what_a_rank_makes_of_its_own(
        mine, its, rows, code):
    notes, found = evidence(NO_MIXTURE, at_one={"terms": its})
    for one, parts in zip(notes, mine):
        one.terms = parts
        one.all_rows = rows or one.all_rows
    if rows == [None]:
        found.alone[0][0].all_rows = rows
    assert [f.code for f in unlike(notes, found)] == [code]


def test_a_call_that_hands_no_gradient_back_is_named():
    for cut in ("", "dist.all_reduce"):
        [one] = unlike(*evidence(NO_MIXTURE, on_ranks={"cut": cut}))
        assert one.code == "local"
        assert one.says.endswith("dist.all_reduce hands no gradient back to what it is "
                                 "given" if cut else "the one of a single device")
