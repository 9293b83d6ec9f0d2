"""A learner's test gets the points that its catch deserves, wherever it is judged.

The points of the wrong tests stand in tests/support/wrong/ps7.py, where they were
written down before any of them was tried.
"""

import json
import random

import pytest

from manual_dp.school import checks
from manual_dp.school.checks import Wrong, check
from manual_dp.school.exercise import exercises
from manual_dp.school.grader.worker import grade
from manual_dp.school.ps7 import judge
from manual_dp.school.tools.run import run
from tests.support.answers import cells_of, define
from tests.support.right import ps7 as right
from tests.support.wrong import ps7 as wrong

NAMES = list(exercises("ps7"))
TESTS = [(exercise, mistake) for exercise, points in wrong.POINTS.items()
         for mistake in points]
ON_RANKS = ("same_on_ranks", "assert_same")


def points_of(name, message):
    return getattr(message, "points", 0) if message else exercises("ps7")[name].points


def try_out(name, answer, seed=0):
    """Return the judge's message for `answer`, or None."""
    exercise = exercises("ps7")[name]
    case, = exercise.draw(random.Random(seed))
    got = json.loads(json.dumps(run(name, case, [answer])))
    return checks.judge(exercise, case, got)


def answer_of(exercise, cell):
    return define(f"ps7/{exercise}", {exercise: cell})[0]


@pytest.mark.parametrize("exercise, mistake", TESTS)
def test_a_wrong_test_gets_what_its_catch_deserves(exercise, mistake):
    cell = wrong.ANSWERS[exercise][mistake][1]
    message = try_out(f"ps7/{exercise}", answer_of(exercise, cell))
    assert points_of(f"ps7/{exercise}", message) == wrong.POINTS[exercise][mistake]


@pytest.mark.parametrize("exercise", wrong.RIGHT)
def test_the_test_that_wrong_ones_are_made_of_is_right(exercise):
    message = try_out(f"ps7/{exercise}", answer_of(exercise, wrong.RIGHT[exercise]), 1)
    assert message is None


@pytest.mark.parametrize("exercise, style", [
    (exercise, style) for exercise, styles in right.ANSWERS.items() for style in styles])
def test_a_right_test_in_another_style_is_not_refused(exercise, style):
    answer = answer_of(exercise, right.ANSWERS[exercise][style])
    assert try_out(f"ps7/{exercise}", answer, 2) is None


def test_there_are_thirty_wrong_tests_and_more_with_points_of_many_kinds():
    assert len(TESTS) >= 60
    assert len({wrong.POINTS[exercise][mistake] for exercise, mistake in TESTS}) >= 10


@pytest.mark.parametrize("exercise, mistake", [
    ("same_step", "two devices only"), ("same_step", "bit for bit"),
    ("same_weights", "one minibatch"), ("same_on_ranks", "no empty shard"),
    ("assert_same", "weights alone"), ("assert_same", "sends the model"),
    ("cause", "rank 0 alone"), ("same_after_kill", "one save"),
    ("faster", "the fastest call"), ("faster", "the mean")])
def test_check_and_grade_give_the_same_points_and_the_same_hint(
        worker, exercise, mistake):
    hint, cell = wrong.ANSWERS[exercise][mistake]
    name, points = f"ps7/{exercise}", wrong.POINTS[exercise][mistake]
    message = grade(worker, exercises("ps7")[name], cells_of("ps7") | {exercise: cell})
    assert points_of(name, message) == points
    with pytest.raises(Wrong) as caught:
        check(name, answer_of(exercise, cell))
    ours, theirs = (str(text).partition("\nperhaps ")[2]
                    for text in (caught.value, message))
    assert ours == theirs != ""
    assert ours.startswith(hint)
    if points:
        assert f": {points:g} of " in str(caught.value)


def test_the_message_names_what_got_away_and_nothing_else():
    cell = wrong.ANSWERS["same_step"]["two devices only"][1]
    message = try_out("ps7/same_step", answer_of("same_step", cell))
    assert message.splitlines() == [
        "given   16 planted bugs and 7 right programs",
        "got     14 bugs caught, 0 right programs accused: 3.5 of 4 points",
        "wanted  16 bugs caught, no right program accused",
        "perhaps got away: add the next rank's gradient, and no other rank's; divide by "
        "the rows of a shard, which may be empty"]


def test_one_right_program_accused_takes_all_points():
    seen = []

    def same_step(train_batch):
        seen.append(train_batch)
        return first(train_batch)
    first, = define("ps7/same_step")
    exercise = exercises("ps7")["ps7/same_step"]
    case, = exercise.draw(random.Random(0))
    got = run("ps7/same_step", case, [same_step])
    assert checks.judge(exercise, case, got) is None
    one = next(i for i, (_, is_right) in enumerate(case.truth) if is_right)
    got["verdicts"][one] = False
    message = checks.judge(exercise, case, got)
    assert message.points == 0
    assert "16 bugs caught, 1 right program accused: 0 of 4 points" in message
    assert f"accused, and right: {judge._begin(case.truth[one][0])}" in message


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_learns_no_truth_from_its_case(name):
    case, = exercises("ps7")[name].draw(random.Random(0))
    bugs = sum(not right for _, right in case.truth)
    assert bugs == 4 * exercises("ps7")[name].points  # a quarter of a point each
    assert len(case.truth) - bugs >= 6 and len(case.truth) == case.inputs
    text = json.dumps(case)
    assert "truth" not in text
    said = [words for words, _ in case.truth if words in text]
    assert said == []
    if isinstance(case["programs"][0], str):
        assert all('"""' not in source and "#" not in source and "program" in source
                   for source in case["programs"])


@pytest.mark.parametrize("name", NAMES)
def test_programs_come_in_an_order_of_their_own(name):
    orders = [[words for words, _ in case.truth] for seed in range(3)
              for case in exercises("ps7")[name].draw(random.Random(seed))]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


@pytest.mark.parametrize("exercise, verdict, problem", [
    ("same_step", None, "a verdict is True or False; the answer returned nothing"),
    ("same_weights", "yes", "a verdict is True or False; the answer returned str"),
    ("faster", 0.9, "a verdict is True or False; the answer returned float")])
def test_a_verdict_is_true_or_false(exercise, verdict, problem):
    with pytest.raises(TypeError, match=problem):
        check(f"ps7/{exercise}", lambda *_: verdict)


def test_a_verdict_may_be_a_tensor():
    import torch
    solution, = define("ps7/same_step")
    assert try_out("ps7/same_step", lambda step: torch.tensor(solution(step))) is None


def test_a_rank_that_has_its_verdict_early_does_not_leave_the_others_waiting():
    cell = cells_of("ps7")["same_on_ranks"].replace(
        "    return spread(same)", "    return same").replace(
        "            same = same and all(", "            if not all(").replace(
        "for p, q in zip(own, one))", "for p, q in zip(own, one)):\n"
        "                return False")
    assert "spread" not in cell and "return False" in cell
    assert try_out("ps7/same_on_ranks", answer_of("same_on_ranks", cell)) is None


def test_a_rank_that_asks_alone_is_told_so():
    cell = ("def same_on_ranks(step):\n"
            "    if dist.get_rank() == 0:\n        spread(True)\n    return True\n")
    message = try_out("ps7/same_on_ranks", answer_of("same_on_ranks", cell))
    assert points_of("ps7/same_on_ranks", message) == 0
    assert "accused, and right: " in message
