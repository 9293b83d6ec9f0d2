"""The programs of problem set 7 are what they are said to be: oracles of another kind.

Steps are laid beside autograd on the whole minibatch, charts beside the gradients of
single rows in steps that were really taken, the fake machine beside sums by hand.
"""

import random

import pytest
import torch

from manual_dp.school.ps7 import (
    broken_trainers,
    charts,
    machines,
    more_steps,
    ranked,
    scripts,
    steps,
    trainers,
)
from manual_dp.school.ps7.clock import Machine
from manual_dp.school.ps7.given import copy_params, draw_batch, draw_params, loss

MODULES = {"steps": more_steps, "trainers": trainers, "broken": broken_trainers,
           "ranked": ranked, "scripts": scripts}


def distance(train_batch, k, rows, count=1, start=3):
    """Return how far the replicas are from one device after `count` steps."""
    params = draw_params(start)
    replicas, one = [copy_params(params) for _ in range(k)], copy_params(params)
    for t in range(count):
        X, y = draw_batch(rows, t)
        train_batch(X, y, replicas, ["cpu"] * k, 0.1)
        grads = torch.autograd.grad(loss(one, X, y).mean(), one)
        one = copy_params([p - 0.1 * grad for p, grad in zip(one, grads)])
    return torch.tensor([(p - q).detach().abs().max() for own in replicas
                         for p, q in zip(own, one)]).max().item()


@pytest.mark.parametrize("k, rows", [(1, 1), (1, 5), (2, 3), (3, 7), (4, 5), (5, 2)])
@pytest.mark.parametrize("program", more_steps.RIGHT)
def test_a_right_step_is_that_of_one_device(program, k, rows):
    assert distance(program, k, rows, count=3) < 1e-14


@pytest.mark.parametrize("program", more_steps.BUGS)
def test_a_planted_bug_is_large_enough_to_be_seen(program):
    assert not distance(program, 3, 7, 2) < 1e-7 or not distance(program, 4, 5, 2) < 1e-7


@pytest.mark.parametrize("program, hidden", [
    (steps.mean_of_means, (2, 4, 1)), (steps.never_cleared, (3, 7, 1)),
    (steps.last_rows_dropped, (3, 6, 2)), (more_steps.neighbours_alone, (2, 7, 2)),
    (more_steps.mean_of_nothing, (3, 7, 2)), (more_steps.filled_up, (3, 6, 2)),
    (more_steps.one_memory, (3, 7, 1)), (steps.own_gradient, (1, 4, 2))])
def test_some_bugs_hide_where_the_text_says_so(program, hidden):
    k, rows, count = hidden
    assert distance(program, k, rows, count) < 1e-14


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("program", trainers.RIGHT)
def test_a_right_training_on_many_devices_is_that_on_one(program, k):
    batches = [draw_batch(rows, i) for i, rows in enumerate([6, 5, 2])]
    one = program(draw_params(1), batches, 1)[0]
    bound = 1e-5 if one[0].dtype == torch.float32 else 1e-12
    for own in program(draw_params(1), batches, k):
        for p, q in zip(own, one):
            assert (p - q).abs().max() <= bound * max(1, q.abs().max())


def test_the_rate_of_one_training_lets_the_loss_explode():
    sizes = [max(p.abs().max() for p in trainers.exploding(
        draw_params(1), [draw_batch(7, 0)] * count, 1)[0]) for count in (1, 2, 3)]
    assert 1 < sizes[0] < sizes[1] / 1e3 < sizes[2] / 1e6 < torch.inf
    ends = trainers.exploding(draw_params(1), [draw_batch(7, 0)] * 10, 1)[0]
    assert not all(p.isfinite().all() for p in ends)


@pytest.mark.parametrize("program", broken_trainers.BUGS)
def test_a_broken_training_ends_elsewhere(program):
    batches = [draw_batch(rows, i) for i, rows in enumerate([7, 2, 7])]
    one = program(draw_params(1), batches, 1)[0]
    assert max((p - q).abs().max() for own in program(draw_params(1), batches, 3)
               for p, q in zip(own, one)) > 1e-6


@pytest.mark.parametrize("name", MODULES)
def test_every_program_says_in_one_line_what_it_does(name):
    module = MODULES[name]
    programs = [*getattr(module, "RIGHT", []), *getattr(module, "BUGS", [])]
    lines = [program.__doc__.strip() for program in programs]
    assert len(set(lines)) == len(lines) and all("\n" not in line for line in lines)


# the charts

PROGRAMS = {"healthy": steps.sums, "mean of means": steps.mean_of_means,
            "sum of means": steps.sum_for_mean, "not synchronised": steps.own_gradient,
            "sum on rank 0": steps.sum_on_rank_0, "rows dropped": steps.last_rows_dropped,
            "rows repeated": more_steps.filled_up}


@pytest.mark.parametrize("k, n", [(2, 5), (3, 7), (4, 7)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_chart_is_what_a_real_step_holds_of_each_row(name, k, n):
    params, (X, y) = draw_params(0), draw_batch(n, 0)
    rows = []
    for i in range(n):
        own = copy_params(params)
        grads = torch.autograd.grad(loss(own, X[i:i + 1], y[i:i + 1]).sum(), own)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    replicas = [copy_params(params) for _ in range(k)]
    PROGRAMS[name](X, y, replicas, ["cpu"] * k, 1.0)
    for rank, own in enumerate(replicas):
        moved = torch.cat([(p - q).flatten() for p, q in zip(params, own)]).detach()
        counts = torch.linalg.lstsq(torch.stack(rows, 1), moved[:, None]).solution[:, 0]
        wanted = torch.tensor(charts.chart(name, k, n)["steps"][0][rank]).double()
        assert (counts * n - wanted).abs().max() < 1e-6


def test_no_two_causes_have_the_same_chart():
    for k in (3, 4, 5):
        for n in range(2 * k + 1, 4 * k):
            if n % k and (k - 1) * -(-n // k) < n:
                steps_of = [torch.tensor(charts.chart(name, k, n)["steps"]).double()
                            for name in charts.CAUSES]
                assert all((a - b).abs().max() > 0.01 for i, a in enumerate(steps_of)
                           for b in steps_of[:i])


# the machines

def recorded(**changes):
    program = {"seconds": [3.0, 2.0], "launch": None}
    return {"a": program, "b": program | {"launch": 0.5}, "speed": [1], "tick": 1e-9,
            **changes}


def test_a_call_takes_its_seconds_and_the_last_one_repeats():
    machine = Machine(recorded())
    times = [machine.clock()]
    for _ in range(3):
        machine.call("a")
        times.append(machine.clock())
    assert [round(b - a, 4) for a, b in zip(times, times[1:])] == [3, 2, 2]


def test_work_that_was_only_started_is_waited_for_once():
    machine = Machine(recorded())
    start = machine.clock()
    machine.call("b")
    machine.call("b")
    assert round(machine.clock() - start, 4) == 1  # two launches
    machine.synchronize()
    machine.synchronize()
    assert round(machine.clock() - start, 4) == 5


def test_a_program_that_waits_comes_after_work_that_was_started():
    machine = Machine(recorded())
    start = machine.clock()
    machine.call("b")
    machine.call("a")
    assert round(machine.clock() - start, 4) == 6


def test_the_speed_of_the_machine_goes_with_the_calls_of_both():
    machine = Machine(recorded(speed=[10, 1, 2]))
    start = machine.clock()
    for _ in range(4):
        machine.call("a")
    assert round(machine.clock() - start, 4) == 30 + 2 + 4 + 4


def test_a_coarse_clock_shows_whole_ticks():
    machine = Machine(recorded(tick=4.0))
    assert machine.clock() % 4 == 0
    machine.call("a")
    assert machine.clock() % 4 == 0


@pytest.mark.parametrize("kind, low, high", [("RIGHT", 0, 0.81), ("BUGS", 0.98, 9)])
def test_true_and_false_claims_differ_in_the_usual_call(kind, low, high):
    for words, draw in getattr(machines, kind).items():
        machine = draw(random.Random(0))
        a, b = (torch.tensor(machine[name]["seconds"]).double().quantile(0.5).item()
                for name in "ab")
        if "leaves its work" in words:  # two calls make one
            b = sum(machine["b"]["seconds"]) / machines.CALLS
        assert low <= b / a <= high, words
