"""Problem set 5, the four programs that need ranks: what is drawn, what is right.

    RANKS        name -> (the arguments of draw, case by case; draw; judge)
"""

from functools import partial

from manual_dp.school.exercise import about, close, each, unequal
from manual_dp.school.tools.linear import (
    STEPPED,
    descend,
    draw_batch,
    draw_layer,
    gradients,
)
from manual_dp.school.tools.plain import tensor

AT_ONCE = [("more rows at once need more memory: call the model on one microbatch, and "
            "then backward, before the next one; until then its graph is kept", True)]


def _draw_hook(random, world_size, _):
    return {"params": [*draw_layer(random), *draw_layer(random, 4)],
            "batches": [[draw_batch(random, 3) for _ in range(2)]
                        for _ in range(world_size)]}


def _judge_hook(say, problem, ranks):
    params, batches, k = problem["params"], problem["batches"], len(ranks)

    def mean(batches, factor=1):
        weight, _, *others = gradients(params, batches)  # the first bias is frozen
        return [factor * weight, None, *(factor * grad for grad in others)]
    first = [rank[0] for rank in batches]
    got = each(each(ranks, "grads"), 0)
    yield say("gradients on every rank after the first backward, None where a "
              "parameter is frozen", got, [mean(first)] * k, [
        ("every rank has its own gradient: the hook is handed the parameter, and what "
         "it returns is not used", [mean([batch]) for batch in first]),
        ("this is the sum; the mean is wanted", [mean(first, k)] * k),
        ("each is divided, but nothing was added up",
         [mean([batch], 1 / k) for batch in first]),
        ("some parameters have the mean, others do not: hook every one that wants a "
         "gradient", any(right is not None and close(mine, right.tolist())
                         for mine, right in zip(got[0], mean(first))))])
    yield say("gradients after a second backward, nothing zeroed in between",
              each(each(ranks, "grads"), 1), [mean(sum(batches, []), 2)] * k,
              [("average after every backward, and all that is in p.grad", True)])
    yield say("the parameters, which nobody should change",
              each(ranks, "params"), [params] * k)


def _draw_double(random, world_size, _):
    return {"lr": random.uniform(0.2, 1),
            "params": [draw_layer(random) for _ in range(world_size)],
            "batches": [[draw_batch(random, 3) for _ in range(2)]
                        for _ in range(world_size)]}


def _judge_double(say, problem, ranks):
    k, lr, got = len(ranks), problem["lr"], each(ranks, "params")
    steps = list(zip(*problem["batches"]))

    def after(factor):
        return [descend(problem["params"][0], steps, lr * factor)[-1]] * k
    yield say(f"two steps with lr {lr:.3f}; the model on every rank", got, after(1), [
        (f"steps are {k} times too small: DDP's mean was divided again", after(1 / k)),
        (f"steps are {k} times too large: nothing divides the sum", after(k)),
        ("replicas differ: who gives all ranks rank 0's weights, and who averages?",
         unequal(got))])
    yield _sent(say, ranks)


def _draw_no_sync(random, world_size, number):
    kind = "SGD" if world_size == 2 else ("SGD with momentum", "Adam")[number]
    return {"lr": random.uniform(0.2, 1), "params": draw_layer(random),
            "optimizer": kind,
            "steps": [[[draw_batch(random, 2) for _ in range((1, 3)[number])]
                       for _ in range(2)] for _ in range(world_size)]}


def _judge_no_sync(say, problem, ranks):
    steps, lr, got = problem["steps"], problem["lr"], each(ranks, "params")
    k, count = len(ranks), len(steps[0][0])

    kind = problem["optimizer"]

    def after(factor, first=0):
        batches = [[batch for rank in step for batch in rank[first:]]
                   for step in zip(*steps)]
        return [descend(problem["params"], batches, lr * factor, kind)[-1]] * k
    if kind != "SGD":
        yield say(f"two steps of {kind} with {count} microbatches, lr {lr:.3f}; the "
                  "model on every rank", got, after(1), STEPPED)
    yield say(f"two steps of {count} microbatches, lr {lr:.3f}; the model on every "
              "rank", got, after(1), [
        (f"steps are {count} times too large: the mean over the microbatches is "
         "wanted", count > 1 and after(count)),
        ("only the last microbatch counts", after(1, count - 1)),
        ("replicas differ: the last microbatch must send", unequal(got))])
    yield _sent(say, ranks)
    yield say(f"two steps of {count} microbatches of 2 rows; most rows under way at "
              "once on rank 0", max(ranks[0]["rows"]), 2, AT_ONCE)


def _draw_zero(random, world_size, number):
    sizes = ([9, 4, 6], [7, 0, 5])[number][:world_size]
    return {"params": draw_layer(random, outputs=3), "sizes": sizes,
            "batch": draw_batch(random, sum(sizes), 3)}


def _judge_zero(say, problem, ranks):
    sizes, (W, b) = problem["sizes"], map(tensor, problem["params"])
    X, y = map(tensor, problem["batch"])
    right = ((X @ W.T + b).argmax(1) == y).double()
    parts = [part.mean() for part in right.split(sizes) if len(part)]
    yield say(f"{sizes} rows; the accuracy on rank 0", ranks[0]["accuracy"],
              right.mean(), [
        ("this counts rank 0's rows only", parts[0]),
        ("the hits are those of all ranks, the number of rows is rank 0's, times the "
         "ranks", right.sum() / sizes[0] / len(sizes)),
        ("this is the mean of the ranks' accuracies; their rows differ in number",
         sum(parts) / len(sizes))], 1e-6)  # torch divides whole numbers in float32


def _sent(say, ranks):
    sent = each(ranks, "sent")
    return say("two steps, gradients of 16 numbers; numbers handed to all-reduces, by "
               "rank", sent, [32] * len(ranks), [
        ("numbers are sent that nobody needs", min(sent) > 32)])


def _draw_problems(draw, random, world_size):
    return {"world_size": world_size,
            "problems": [draw(random, world_size, number) for number in range(2)]}


def _judge_problems(number, judge, case, got):
    say = about(f"repaired_{number}, {case['world_size']} ranks")
    for i, problem in enumerate(case["problems"]):
        ranks = each(got["ranks"], i)
        yield say("ranks missing at a collective that others wait in",
                  max(each(ranks, "absent")), 0,
                  [("a collective stands where not every rank comes by", True)])
        yield from judge(say, problem, ranks)


RANKS = {name: ([[2], [3]], partial(_draw_problems, draw),
                partial(_judge_problems, number, judge))
         for name, number, draw, judge in [
             ("hook", 3, _draw_hook, _judge_hook),
             ("double_averaging", 7, _draw_double, _judge_double),
             ("no_sync", 8, _draw_no_sync, _judge_no_sync),
             ("rank_zero_only", 9, _draw_zero, _judge_zero)]}
