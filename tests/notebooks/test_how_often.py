"""programs/how_often.py: one process plays ranks that meet now and then; what is stored."""

import json
from functools import partial
from itertools import islice
from math import pi, sin
from pathlib import Path
from statistics import mean

import pytest
import torch
from programs import how_often
from programs.how_often import batches, digits, network, race, steps_to, times, train
from torch.nn import functional as F

STORED = Path(__file__).parents[2] / "notebooks/results/how-often.json"
sgd = partial(torch.optim.SGD, lr=0.25)


def test_the_images_are_those_of_sklearn_without_their_frame():
    X, y, X_test, y_test = digits()
    assert X.shape == (1438, 64) and X_test.shape == (359, 64)
    assert X.max() == 1 and {*y.tolist()} == {*y_test.tolist()} == set(range(10))


def test_sorted_ranks_have_digits_of_their_own_and_all_rows_are_dealt_once():
    _, y, *_ = digits()
    seen = [torch.cat([*islice(batches("sorted", rank), 99)]) for rank in range(4)]
    assert [{*y[rows].tolist()} for rows in seen] == [
        {0, 1, 2},
        {2, 3, 4},
        {4, 5, 6, 7},
        {7, 8, 9},
    ]
    assert not {*seen[0].tolist()} & {*seen[1].tolist()}


def test_so_many_rows_are_drawn_from_all_digits():
    _, y, *_ = digits()
    rows = torch.stack([*islice(batches("sorted", 0, foreign=4), 99)])
    assert y[rows[:, :4]].max() == 9 and y[rows[:, 4:]].max() == 2


def alone_and_met(every, steps=3):
    """Return the test losses of four ranks that step one after another."""
    X, y, *_ = digits()
    nets = [network(0) for _ in range(4)]
    draws = [batches("shuffled", rank) for rank in range(4)]
    for step in range(1, steps + 1):
        for net, draw in zip(nets, draws):
            rows, optimizer = next(draw), sgd(net.parameters())
            optimizer.zero_grad()
            F.cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
        if step % every == 0:
            with torch.no_grad():
                for same in zip(*(net.parameters() for net in nets)):
                    mean = sum(same) / 4
                    for p in same:
                        p.copy_(mean)
    return [[p.detach() for p in net.parameters()] for net in nets]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_ranks_in_one_process_train_as_ranks_do_alone(every, monkeypatch):
    monkeypatch.setattr(how_often, "LOOK", 3)
    seen = []
    real = how_often.test
    monkeypatch.setattr(how_often, "test", lambda p: seen.append(p) or real(p))
    train("shuffled", every, sgd, 6 if every == 2 else 3, seeds=[0])
    wanted = alone_and_met(every, 6 if every == 2 else 3)
    for stacked, *each in zip(seen[-1], *wanted):
        torch.testing.assert_close(stacked.detach(), torch.stack(each))


def test_a_seed_trains_alike_alone_and_beside_others():
    both, alone = (
        train("shuffled", 2, sgd, 16, seeds=seeds) for seeds in ((0, 3), (3,))
    )
    assert [loss[1] for _, loss, _ in both] == pytest.approx(
        [loss[0] for _, loss, _ in alone]
    )


def test_steps_to_is_the_first_look_that_is_good_enough():
    found = [(16, [], [0.5, 0.2]), (32, [], [0.1, 0.2]), (48, [], [0.3, 0.2])]
    assert steps_to(0.1, found) == [32, None]


def grows(rate, kind="equal", workers=4, seeds=range(10)):
    """Return in how many races w grows."""
    runs = [race(rate, times(kind, seed), workers) for seed in seeds]
    return sum(sizes[-1] > 1000 for sizes, _ in runs)


@pytest.mark.parametrize("age", [0, 1, 3])
def test_workers_in_turn_shrink_w_only_below_the_rate_that_arithmetic_gives(age):
    limit = 2 * sin(pi / (4 * age + 2))
    assert race(limit, times("equal", 0), age + 1)[1][age:] == [age] * (400 - age)
    below, above = (
        race(part * limit, times("equal", 0), age + 1, 4000)[0][-1]
        for part in (0.98, 1.02)
    )
    assert below < 1e-3 and above > 1e3


def test_at_one_mean_age_the_limit_is_higher_if_times_are_drawn():
    for kind in ("equal", "similar", "any"):
        ages = [mean(race(0.4, times(kind, seed))[1]) for seed in range(10)]
        assert min(ages) > 2.9 and max(ages) < 3.1
    after_40 = [race(0.4, times("similar", seed))[0][39] for seed in range(10)]
    assert min(after_40) < 0.009 and max(after_40) > 0.19
    assert [grows(rate, seeds=[0]) for rate in (0.4, 0.5)] == [0, 1]
    shrunk = [race(0.8, times("any", seed))[0][-1] for seed in range(10)]
    assert max(shrunk) < 1e-3
    assert grows(0.6, "similar") == 10 and grows(3, "any") == 10


def test_every_case_is_stored_for_ten_seeds():
    runs = json.loads(STORED.read_text(encoding="utf-8"))["runs"]
    assert {(run["order"], run["rate"], run["H"]) for run in runs} == {
        (order, rate, every)
        for order in ("shuffled", "sorted")
        for rate in how_often.RATES
        for every in how_often.HS
    }
    assert {len(run["wrong"]) for run in runs} == {10}
    assert {len(seeds) for run in runs for seeds in run["steps"].values()} == {10}
