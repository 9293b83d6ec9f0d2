"""Problem set 4, DDP by hand: what is drawn, and what would be right."""

from manual_dp.school.exercise import Exercise, close
from manual_dp.school.ps4.messages import in_buckets, one_each, quiet
from manual_dp.school.ps4.truth import PASSES, alone, begin, draw, weights
from manual_dp.school.ps4.words import failed, so_many, some
from manual_dp.school.tools.plain import tensor

ORDER = "all ranks must call the same collectives in the same order"


def _judge_start(case, got):
    problem = failed(case, got, f"{ORDER}: those who receive call broadcast, too"
                     ) or begin(case, [rank["start"] for rank in got["ranks"]],
                                "start_equal")
    for number, (_, _, after) in enumerate(alone(case)):
        for name, wanted in after.items():
            problem = problem or some(
                f"{so_many(case['world_size'])}, each training on all rows; {name} on "
                f"every rank after step {number + 1}",
                [rank["steps"][number]["weights"][name] for rank in got["ranks"]],
                [wanted] * case["world_size"], [
                    ("the optimizer was made before: it holds the old tensors. Write "
                     "into them, and leave what is frozen or tied so", True)])
    return problem


def _draw_average(random):
    yield from draw(random, PASSES, spare=True)


def _judge_average(case, got):
    return failed(case, got, f"{ORDER}, also for a gradient that is None on one of them"
                  ) or _judge_steps(case, got, one_each)


def _judge_steps(case, got, judge_messages, more=None):
    for number, truth in enumerate(alone(case)):
        ranks = [rank["steps"][number] for rank in got["ranks"]]
        problem = (judge_messages(case, number, ranks)
                   or weights(case, number, ranks, truth, more and more(ranks, truth)))
        if problem:
            return problem
    return None


def _draw_buckets(random):
    for case in draw(random, PASSES, spare=True):
        # each alone; exactly full; with room left; exactly full; one for all
        numbers = [random.randint(8, 13), 19, random.randint(57, 67), 56,
                   random.randint(147, 999)]
        for step, count in zip(case["steps"], numbers):
            step["arguments"] = [8 * count]
        yield case


def _judge_buckets(case, got):
    def more(ranks, truth):
        before, _, after = truth
        moved = [_moved(before, rank["weights"]) for rank in ranks]
        wrong_places = all(close(one, _moved(before, after)) for one in moved)
        return lambda name, each: [
            ("the right numbers in the wrong places: cut a bucket into pieces in the "
             "order in which it was packed", wrong_places)]
    return failed(case, got, ORDER) or _judge_steps(case, got, in_buckets, more)


def _moved(before, after):
    """Return by how much each number has moved, sorted."""
    return sorted(x for name in before
                  for x in (tensor(after[name]) - tensor(before[name])).tolist())


def _judge_hooks(case, got):
    def more(ranks, truth):
        return lambda name, each: [
            ("every rank stepped with its own gradient: a hook is handed the "
             "parameter p; the gradient is p.grad",
             each(*[grads[0][name] for grads in truth[1]]))]
    return failed(case, got, ORDER) or _judge_steps(case, got, one_each, more)


def _draw_ddp(random):
    for case in draw(random, backwards=(1, 3, 1, 2, 3)):
        case["steps"][2]["interrupted"] = True
        yield case


def _judge_ddp(case, got):
    problem = failed(case, got, ORDER) or begin(
        case, [rank["start"] for rank in got["ranks"]], "DDP(module)")
    if problem:
        return problem
    for number, truth in enumerate(alone(case)):
        ranks = [rank["steps"][number] for rank in got["ranks"]]
        problem = (quiet(case, number, ranks, truth[1]) or _said(case, number, ranks)
                   or weights(case, number, ranks, truth, _accumulated(truth[1])))
        if problem:
            return problem
    return None


def _said(case, number, ranks):
    problem = one_each(case, number, ranks)
    if problem and case["steps"][number]["interrupted"]:
        problem = problem.partition("\nperhaps ")[0]
        problem += ("\nperhaps a no_sync block that ended in an error before this step "
                    "is still in force: use try and finally")
    return problem


def _accumulated(own):
    """Return hints on a step with several backwards."""
    def more(name, each):
        k, count = len(own), len(own[0])
        kept = [sum(part[name] for part in parts[:-1]) for parts in own]
        last = sum(parts[-1][name] for parts in own) / k
        mean = last + sum(kept) / k
        return count > 1 and [
            ("what was added up in no_sync is lost", each(last)),
            ("only the last backward's gradient is averaged: what each rank had added "
             "up before has to be, too", each(*[last + part for part in kept])),
            ("divided by the number of backwards: the loss has seen to that",
             each(mean / count)),
            ("what was added up in no_sync was divided by 2",
             each((last + mean) / 2))] or []
    return more


EXERCISES = [
    Exercise("ps4/start_equal", 3, draw, _judge_start),
    Exercise("ps4/average_gradients", 4, _draw_average, _judge_average),
    Exercise("ps4/average_in_buckets", 4, _draw_buckets, _judge_buckets),
    Exercise("ps4/average_in_hooks", 3, draw, _judge_hooks),
    Exercise("ps4/DDP", 4, _draw_ddp, _judge_ddp, cells=("start_equal", "DDP")),
]
