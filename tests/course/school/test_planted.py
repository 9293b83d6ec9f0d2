"""The programs that problem set 7 plants are what they are said to be.

Steps are laid beside autograd on the whole minibatch, machines beside sums by hand.
"""

import contextlib
import io
import random

import pytest
import torch

from course.school import ps7
from course.school.checks import check
from course.school.planted import MACHINES, PLANTED, programs
from tests.support.school import WRONG, define

KINDS = {**{name: programs(name) for name in PLANTED}, "faster": MACHINES}


def distance(source, k, rows, count):
    """Return how far the replicas are from one device after `count` steps."""
    program = ps7._define(source)
    params = ps7.draw_params(3)
    replicas, one = [ps7.copy_params(params) for _ in range(k)], ps7.copy_params(params)
    for t in range(count):
        X, y = ps7.draw_batch(rows, t)
        program(X, y, replicas, ["cpu"] * k, 0.1)
        grads = torch.autograd.grad(ps7.loss(one, X, y).mean(), one)
        one = ps7.copy_params([p - 0.1 * grad for p, grad in zip(one, grads)])
    return (
        torch.tensor(
            [(p - q).detach().abs().max() for own in replicas for p, q in zip(own, one)]
        )
        .max()
        .item()
    )


@pytest.mark.parametrize("name", KINDS)
def test_each_exercise_has_its_bugs_and_right_programs_of_different_names(name):
    right, bugs = KINDS[name]
    assert (len(right), len(bugs)) == (ps7.RIGHT, ps7.BUGS) == (3, 7)
    assert not right.keys() & bugs.keys()
    assert not [words for words in (*right, *bugs) if ";" in words]  # lists have it


def test_a_right_step_is_that_of_one_device_and_a_bug_is_large_enough_to_be_seen():
    right, bugs = KINDS["same_step"]
    for source in right.values():
        for k, rows in [(1, 1), (1, 5), (2, 3), (3, 7), (4, 5), (5, 2)]:
            assert distance(source, k, rows, 3) < 1e-14
    for words, source in bugs.items():  # NaN is seen, too
        far = torch.tensor(
            [distance(source, k, rows, 2) for k, rows in [(3, 7), (4, 5)]]
        )
        assert not far.max() < 1e-7, words


def test_machines_differ_in_the_usual_call():
    for kind, low, high in zip(MACHINES, (0, 0.9), (0.81, 9)):
        for words, claim in kind.items():
            a, b, synchronize, clock = ps7._machine(random.Random(0), *claim)
            ratios = []
            for _ in range(200):
                times = []
                for program in (a, b):
                    start = clock()
                    program()
                    synchronize()
                    times.append(clock() - start)
                ratios.append(times[1] / times[0])
            assert low <= sorted(ratios)[100] <= high, words


def test_the_message_counts_first_and_then_names_what_got_away():
    cell = WRONG["ps7/same_on_ranks"][
        "got away: average the ranks' means, whatever their rows; divide"
    ]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        points = check("ps7/same_on_ranks", *define("ps7/same_on_ranks", cell))
    assert points == 2.5 and out.getvalue().splitlines() == [
        "ps7/same_on_ranks is right in parts.",
        "given   7 planted bugs and 3 right programs; your test",
        "got     bugs caught: 5, right programs accused: 0, points: 2.5",
        "wanted  bugs caught: 7, right programs accused: 0, points: 3.5",
        "perhaps got away: average the ranks' means, whatever their rows; divide by the "
        "rank's rows, of which there may be none",
    ]
