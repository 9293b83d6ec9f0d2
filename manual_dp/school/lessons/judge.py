"""The exercises of the lessons: each asks for the function that the lesson then shows.

Most are judged as in a problem set. The two halves of the ring are functions of all
ranks' chunks here, programs of one rank in problem set 2. Those of lessons 08 to 10
and 16 to 19 are in files of their own.
"""

from dataclasses import replace

from manual_dp.school.exercise import Exercise, find
from manual_dp.school.lessons import (
    gradients,
    memory,
    messages,
    prices,
    rows,
    scaling,
    training,
)
from manual_dp.school.sums import judge_chunks, judge_copies
from manual_dp.school.tools.plain import random_numbers

# ranks, and numbers in each rank's tensor: chunks of one size, of two, of none
SIZES = [(3, 6), (3, 7), (2, 5), (1, 4), (4, 8), (4, 3), (5, 12), (7, 9)]


def _draw_chunks(random):
    for world_size, numel in SIZES:
        yield {"tensors": random_numbers(random, world_size, numel)}


def _other_chunk(case):
    yield ("another chunk's numbers have come in: chunks[rank][i] goes to "
           "chunks[peer][i], of the same i", True)


def _judge_reduce_scatter(case, got):
    yield from judge_chunks(case, got, late=_other_chunk)


def _judge_allgather(case, got):
    yield from judge_copies(case, got, late=_other_chunk)


def _as_in(problem_set, name):
    exercise = find(f"{problem_set}/{name.partition('/')[2]}")
    return replace(exercise, name=name, points=0, parts=(), beside=())


def _allreduce():
    """Return problem set 1's, without tensors that the book's own cannot index."""
    exercise = _as_in("ps1", "03/allreduce")

    def draw(random):
        return (case for case in exercise.draw(random)
                if isinstance(case["tensors"][0], list))
    return replace(exercise, draw=draw)


def _hook():
    """Return problem set 4's, without the case of one rank."""
    exercise = find("ps4/average_in_hooks")

    def draw(random):
        return (case for case in exercise.draw(random) if case["world_size"] > 1)
    return replace(exercise, name="09/hook", points=0, draw=draw, seconds=20,
                   answers=("average_when_ready",))


EXERCISES = [
    _as_in("ps1", "02/get_params"),
    _allreduce(),
    Exercise("03/reduce_scatter", 0, _draw_chunks, _judge_reduce_scatter),
    Exercise("03/allgather", 0, _draw_chunks, _judge_allgather),
    _as_in("ps1", "04/split_batch"),
    _as_in("ps1", "05/sgd"),
    _as_in("ps1", "05/train_batch"),
    _as_in("ps3", "06/evaluate_accuracy"),
    _as_in("ps3", "06/learning_rate"),
    *messages.EXERCISES,
    _hook(),
    *gradients.EXERCISES,
    *training.EXERCISES,
    *prices.EXERCISES,
    *scaling.EXERCISES,
    *memory.EXERCISES,
    *rows.EXERCISES,
]
