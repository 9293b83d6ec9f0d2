"""Problem set 4, DDP by hand: what is drawn, and what would be right."""

from functools import partial

from manual_dp.school.exercise import Exercise, so_many
from manual_dp.school.ps4.messages import in_buckets, one_each, quiet
from manual_dp.school.ps4.truth import PASSES, alone, begin, draw, weights
from manual_dp.school.ps4.words import failed, some


def _judge_start(case, got):
    k = case["world_size"]
    yield failed(case, got)
    yield from begin(case, got["ranks"], "start_equal")
    for number, (_, _, after) in enumerate(alone(case)):
        for name, wanted in after.items():
            yield some(
                f"{so_many(k, 'rank')}, each training on all rows; {name} on every "
                f"rank after step {number + 1}",
                [rank["steps"][number]["weights"][name] for rank in got["ranks"]],
                [wanted] * k, [
                    ("the optimizer was made before: it holds the old tensors. Write "
                     "into them, and leave what is frozen or tied so", True)])


def _judge_steps(case, got, messages):
    yield failed(case, got)
    if messages is quiet:
        yield from begin(case, got["ranks"], "DDP(module)")
    for number, truth in enumerate(alone(case)):
        ranks = [rank["steps"][number] for rank in got["ranks"]]
        yield from messages(case, number, ranks, truth)
        yield from weights(case, number, ranks, truth)


def _draw_buckets(random):
    for case in draw(random, PASSES, spare=True, equal=True):
        # each alone; exactly full; with room left; exactly full; one for all
        numbers = [random.randint(8, 13), 19, random.randint(57, 67), 56,
                   random.randint(147, 999)]
        for step, count in zip(case["steps"], numbers):
            step["arguments"] = [8 * count]
        yield case


def _draw_ddp(random):
    for case in draw(random, backwards=(1, 3, 1, 2, 3)):
        case["steps"][2]["interrupted"] = True
        yield case


EXERCISES = [
    Exercise("ps4/start_equal", 3, draw, _judge_start),
    Exercise("ps4/average_gradients", 4,
             partial(draw, passes=PASSES, spare=True, equal=True),
             partial(_judge_steps, messages=one_each)),
    Exercise("ps4/average_in_buckets", 4, _draw_buckets,
             partial(_judge_steps, messages=in_buckets)),
    Exercise("ps4/average_in_hooks", 3, partial(draw, equal=True),
             partial(_judge_steps, messages=one_each)),
    Exercise("ps4/DDP", 4, _draw_ddp, partial(_judge_steps, messages=quiet),
             cells=("start_equal", "DDP")),
]
