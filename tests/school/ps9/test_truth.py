"""What the judges of problem set 9 hold for right: against runs of the course's own."""

import random

import numpy as np
import pytest
from torch import arange

from manual_dp.lab.network.ledger import as_ledger, record
from manual_dp.lab.network.schedules import run
from manual_dp.lab.network.ways import WAYS as LISTED
from manual_dp.lab.trainer.rows import rows_left
from manual_dp.school.exercise import find
from manual_dp.school.grader.worker import grade
from manual_dp.school.ps9 import hosts, memory, overlap, prices, programs, scaling
from manual_dp.school.tools.run import run as run_answer
from tests.support.answers import HINTS, WRONG, cells_of
from tests.support.wrong import begins

CASE = {"alpha": 3e-6, "beta": 7e-10}


def counted(way, world_size, size):
    """Return the seconds by a count of the messages themselves."""
    if world_size == 1:
        return 0.0
    ledger = run(way, world_size, size // 4)
    return len(ledger.steps) * CASE["alpha"] + ledger.in_a_row * CASE["beta"]


def test_the_prices_that_are_wanted_are_those_of_counted_messages():
    for case in prices.draw_prices(random.Random(1)):
        case = {**case, **CASE, "asked": [one for one in case["asked"] if one[1] < 300]}
        got = [counted(*one) for one in case["asked"]]
        assert [said for said in prices.judge_prices(case, got) if said] == []
        for i, (_, world_size, _) in enumerate(case["asked"]):
            off = [value * (1 + 1e-5) for value in got[:i + 1]] + got[i + 1:]
            if world_size > 1:
                assert any(prices.judge_prices(case, off))


def lines(case):
    """Return alpha and beta, by numpy: right, and by the other weights."""
    t, s = np.array(case["seconds"]), case["sizes"]
    return [np.polyfit(s, t, 1, w=w)[::-1] for w in (1 / t, t ** 0, t ** -0.5, t ** -2)]


def test_every_drawn_measurement_shows_what_its_weights_are():
    for seed in range(20):
        exact, *noisy = prices.draw_fit(random.Random(seed))
        assert len(exact["sizes"]) == 2 and lines(exact)[0].min() > 0
        for case in noisy:
            right, *others = lines(case)
            assert right.min() > 0
            assert all(abs(other / right - 1).max() > 0.015 for other in others)
        alone = {name: sorted(noisy[0][name]) for name in noisy[0]}
        once = dict(zip(noisy[1]["sizes"], noisy[1]["seconds"]))
        once = {"sizes": list(once), "seconds": list(once.values())}
        for case, other in zip(noisy, (alone, once)):
            assert abs(lines(other)[0] / lines(case)[0] - 1).max() > 0.004


def test_a_size_that_is_first_and_last_is_judged_too():
    case = {"sizes": [100, 5000, 100], "seconds": [2e-6, 9e-6, 3e-6]}
    got = {**case, "pair": lines(case)[0].tolist()}
    assert [said for said in prices.judge_fit(case, got) if said] == []
    assert any(prices.judge_fit(case, {**got, "pair": [1e-6, 1e-9]}))


@pytest.mark.parametrize("world_size", [2, 3, 5, 8, 16])
def test_the_courses_halving_doubling_is_within_the_bounds(world_size):
    for numbers in (0, 1, world_size, 5 * world_size, 5 * world_size + 1):
        ledger = as_ledger(record(LISTED["halving-doubling"], world_size, numbers),
                           world_size)
        steps, busiest, _ = programs.halving_bounds(world_size, [numbers])
        if world_size & (world_size - 1) == 0:
            assert len(ledger.steps) <= steps and ledger.busiest <= 4 * busiest


@pytest.mark.parametrize("world_size, per_node", [(4, 2), (6, 3), (8, 4), (6, 2)])
def test_the_courses_two_level_ring_needs_just_the_bounds(world_size, per_node):
    numbers = 3 * world_size
    log = run("two-level", world_size, numbers, per_node=per_node)
    out = sum(step.between or 0 for step in log.steps)
    assert (len(log.steps), log.busiest // 4, out // 4) == programs.level_bounds(
        world_size, numbers, per_node)


def test_rows_are_drawn_that_do_not_divide_and_that_are_too_few():
    for seed in range(20):
        cases = list(hosts.draw_places(random.Random(seed)))
        over = [case["rows"] / len(case["ranks"]) for case in cases]
        assert any(part > 1 and part % 1 for part in over) and min(over[2:3]) < 1
        alone = [case["ranks"][0][1] > 0 for case in cases
                 if "RANK" not in case["ranks"][0][0]]
        assert alone == [False, True]


def test_the_courses_own_rows_are_right():
    for case in hosts.draw_rows(random.Random(2)):
        got = run_answer("ps9/rows_left", case, [rows_left])
        assert [said for said in hosts.judge_rows(case, got) if said] == []


def test_every_drawn_situation_shows_its_mistake():
    for seed in range(5):
        [case] = overlap.draw(random.Random(seed))
        for one, (_, how) in zip(case["several"], overlap.MISTAKES):
            assert overlap.best(one, **how) != overlap.best(one)


def test_the_step_gets_longer_before_it_is_the_shortest():
    for seed in range(5):
        bumps, free, slow, one, *_ = scaling.draw(random.Random(seed))
        job = scaling.SimpleNamespace(**bumps["job"])
        assert scaling.first_slower(job, bumps["most"]) < scaling.best(
            job, bumps["most"], False) < bumps["most"]
        job = scaling.SimpleNamespace(**free["job"])
        assert scaling.first_slower(job, 9) is None and scaling.best(job, 9, False) == 5
        assert slow["job"]["slow"] > 1 and one["most"] == 1


def test_one_rank_is_best_for_weak_scaling_too_in_two_of_the_jobs():
    for seed in range(20):
        *_, dear, slowest = scaling.draw(random.Random(seed))
        for case in (dear, slowest):
            job = scaling.SimpleNamespace(**case["job"])
            assert scaling.best(job, case["most"], True) == 1 < case["most"]


@pytest.mark.parametrize("number", [
    lambda s, e: s + e, lambda s, e: 2 * s + e, lambda s, e: 100 * s + e,
    lambda s, e: 100 * e + s, lambda s, e: 256 * s + e])
def test_seeds_and_epochs_are_drawn_that_two_pairs_of_a_wrong_answer_share(number):
    for seed in range(20):
        for case in hosts.draw_rows(random.Random(seed)):
            pairs = case["epochs"]
            assert len({1000 * s + e for s, e in pairs}) == len(pairs)
            assert len({number(s, e) for s, e in pairs}) < len(pairs)


def test_memories_are_drawn_that_just_suffice_and_that_never_do():
    for case in memory.draw(random.Random(3)):
        wanted = [memory.fewest(case["layers"], stage, room, case["most"])
                  for stage, room in case["memories"]]
        assert None in wanted and 1 in wanted
        assert memory.kept(case["layers"], 1, 0) == 16 * sum(case["layers"])


def test_rows_of_one_rank_are_the_order_itself():
    assert sorted(rows_left(9, 0, 1, 1, 5, 0)[0]) == arange(9).tolist()


@pytest.mark.parametrize("name, mistake", [
    ("halving_doubling", "a ring"), ("halving_doubling", "no yield"),
    ("two_level", "one ring over all"), ("two_level", "one rank speaks for a node")])
def test_a_wrong_program_is_told_the_same_by_the_grader(worker, name, mistake):
    cells = cells_of("ps9") | {name: WRONG[f"ps9/{name}"][mistake]}
    message = grade(worker, find(f"ps9/{name}"), cells)
    assert begins(message.partition("\nperhaps ")[2], HINTS[f"ps9/{name}"][mistake])


@pytest.mark.parametrize("name", ["halving_doubling", "two_level"])
def test_ranks_share_nothing_while_their_programs_are_graded(worker, name):
    more = ", per_node" * (name == "two_level")
    cell = f'''
held = {{}}
def {name}(rank, world_size, tensor{more}):
    held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))
'''
    message = grade(worker, find(f"ps9/{name}"), cells_of("ps9") | {name: cell})
    assert message.startswith("The answer raised KeyError")
