"""The programs that problem set 7 plants are what they are said to be.

Steps are laid beside autograd on the whole minibatch, machines beside sums by hand.
"""

import contextlib
import io
import random

import pytest
import torch

from course.school import ps7
from course.school.checks import Wrong, check
from course.school.planted import MACHINES, PLANTED, programs
from tests.support.school import WRONG, define, solution

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
    return torch.tensor([(p - q).detach().abs().max() for own in replicas
                         for p, q in zip(own, one)]).max().item()


@pytest.mark.parametrize("name", KINDS)
def test_each_exercise_has_eight_bugs_and_four_right_programs_of_different_names(name):
    right, bugs = KINDS[name]
    assert (len(right), len(bugs)) == (ps7.RIGHT, ps7.BUGS)
    assert not right.keys() & bugs.keys()
    assert not [words for words in (*right, *bugs) if ";" in words]  # lists have it


@pytest.mark.parametrize("name", PLANTED)
def test_a_program_does_not_say_what_it_is(name):
    sources = {words: source for kind in programs(name) for words, source in kind.items()}
    assert len(set(sources.values())) == len(sources)
    for words, source in sources.items():
        assert words not in source and "#" not in source and '"""' not in source


@pytest.mark.parametrize("words", KINDS["same_step"][0])
def test_a_right_step_is_that_of_one_device(words):
    for k, rows in [(1, 1), (1, 5), (2, 3), (3, 7), (4, 5), (5, 2)]:
        assert distance(KINDS["same_step"][0][words], k, rows, 3) < 1e-14


@pytest.mark.parametrize("words", KINDS["same_step"][1])
def test_a_planted_bug_is_large_enough_to_be_seen(words):
    source = KINDS["same_step"][1][words]
    assert not distance(source, 3, 7, 2) < 1e-7 or not distance(source, 4, 5, 2) < 1e-7


@pytest.mark.parametrize("begin, k, rows, count", [
    ("average the shards' means", 2, 4, 1), ("keep the gradients", 3, 7, 1),
    ("leave out the rows", 3, 6, 2), ("add the next rank's", 2, 7, 2),
    ("divide by the rows", 3, 7, 2), ("let every replica", 1, 4, 2)])
def test_some_bugs_hide_where_the_text_says_so(begin, k, rows, count):
    source, = (source for words, source in KINDS["same_step"][1].items()
               if words.startswith(begin))
    assert distance(source, k, rows, count) < 1e-14


@pytest.mark.parametrize("right, words", [
    (right, words) for right, kind in zip((True, False), KINDS["same_weights"])
    for words in kind])
def test_a_training_on_three_devices_is_that_on_one_if_it_is_right(right, words):
    program = ps7._define(KINDS["same_weights"][not right][words])
    params, batches = ps7.draw_params(1), [ps7.draw_batch(n, n) for n in (7, 2, 5)]
    one = program(params, batches, 1)[0]
    bound = 1e-5 if one[0].dtype == torch.float32 else 1e-10
    far = max((p - q).abs().max() / max(1, q.abs().max()) for own in
              program(params, batches, 3) for p, q in zip(own, one))
    assert far <= bound if right else far > 1e-6


def test_machines_differ_in_the_usual_call():
    for kind, low, high in zip(MACHINES, (0, 0.9), (0.81, 9)):
        for words, claim in kind.items():
            a, b, synchronize, clock = ps7._machine(random.Random(0), *claim)
            ratios = []
            for _ in range(200):
                times = []
                for program in (a, b, b):  # of two calls of b, one may do both's work
                    start = clock()
                    program()
                    synchronize()
                    times.append(clock() - start)
                ratios.append((times[1] + times[2]) / 2 / times[0])
            assert low <= sorted(ratios)[100] <= high, words


def test_work_that_was_only_started_is_waited_for_once():
    a, b, synchronize, clock = ps7._machine(
        random.Random(0), {"seconds": 3.0, "noise": 0},
        {"seconds": 2.0, "noise": 0, "launch": 0.5, "first": [2]}, (10, 1))
    times = [clock()]
    for call in (b, b, synchronize, synchronize, a, b, a):
        call()
        times.append(clock())
    assert [round(after - before, 4) for before, after in zip(times, times[1:])] == [
        0.5, 0.5, 41, 0, 3, 0.5, 4.5]


def said(name, answer, seed=0):
    """Return what check says, and the points that it returns."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        points = check(name, answer, draws=random.Random(seed))
    return out.getvalue().splitlines(), points


def test_the_message_counts_first_and_then_names_what_got_away():
    cell, = (cell for hint, cell in WRONG["ps7/same_step"].items() if hint.startswith(
        "got away: add the next rank's gradient, and no other rank's; divide"))
    assert said("ps7/same_step", *define("ps7/same_step", cell)) == ([
        "ps7/same_step is right in parts.",
        "given   8 planted bugs and 4 right programs",
        "got     6 bugs caught, 0 right programs accused: 3 of 4 points",
        "wanted  8 bugs caught, no right program accused",
        "perhaps got away: add the next rank's gradient, and no other rank's; divide by "
        "the rows of a shard, which may be empty"], 3.0)


def test_one_right_program_accused_takes_all_points():
    answer, = solution("ps7/same_step")
    accused = []

    def same_step(train_batch):
        same = answer(train_batch)
        accused.extend([train_batch] * (same and not accused))
        return same and train_batch not in accused
    with pytest.raises(Wrong, match="8 bugs caught, 1 right program accused: 0 of 4"):
        check("ps7/same_step", same_step)


def test_who_suspects_nothing_gets_nothing():
    with pytest.raises(Wrong, match="0 bugs caught, 0 right programs accused: 0 of 4"):
        check("ps7/faster", lambda *_: True)


def test_programs_come_in_an_order_of_their_own():
    orders = [[words for words, _, _ in ps7._drawn(random.Random(seed), MACHINES)]
              for seed in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


@pytest.mark.parametrize("verdict, problem", [(None, "nothing"), ("yes", "str"),
                                              (0.9, "float")])
def test_a_verdict_is_true_or_false(verdict, problem):
    with pytest.raises(Wrong, match="a verdict is True or False; the answer returned "
                                    f"{problem}"):
        check("ps7/same_weights", lambda train: verdict)
