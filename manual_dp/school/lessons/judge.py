"""The exercises of the lessons: each asks for the function that the lesson then shows.

Most are judged as in a problem set. The two halves of the ring are functions of all
ranks' chunks here, programs of one rank in problem set 2: they, and the exercises of
lessons 07 to 10 and 16 to 19, are in files of their own.
"""

from dataclasses import replace

from manual_dp.school.exercise import find
from manual_dp.school.lessons import (
    checkpoints,
    gradients,
    memory,
    messages,
    prices,
    replicas,
    ring,
    rows,
    scaling,
    training,
)


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


def _train_batch():
    """Return problem set 1's; before some first steps, gradients hold old numbers."""
    exercise = _as_in("ps1", "05/train_batch")

    def draw(random):
        for case in exercise.draw(random):
            stale = {"stale": random.uniform(0.5, 1)} if case["world_size"] > 2 else {}
            yield {**case, **stale}
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
    *ring.EXERCISES,
    _as_in("ps1", "04/split_batch"),
    _as_in("ps1", "05/sgd"),
    _train_batch(),
    _as_in("ps3", "06/evaluate_accuracy"),
    _as_in("ps3", "06/learning_rate"),
    *replicas.EXERCISES,
    *messages.EXERCISES,
    _hook(),
    *gradients.EXERCISES,
    *training.EXERCISES,
    *checkpoints.EXERCISES,
    *prices.EXERCISES,
    *scaling.EXERCISES,
    *memory.EXERCISES,
    *rows.EXERCISES,
]
