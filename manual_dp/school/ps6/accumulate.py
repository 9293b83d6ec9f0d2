"""Accumulation, in one process and on ranks: what is drawn, and what would be right.

    draw, judge_step                 one process
    draw_ranks, judge_step_of_ranks  on ranks, with torch's DDP
    judge_one_by_one                 the same; no microbatch waits for the next
    judge                            all steps, by one of these

The truth is a step of SGD with the gradient of the mean loss of all rows at once.
"""

from manual_dp.school.exercise import about, each, unequal
from manual_dp.school.tools.linear import (
    STEPPED,
    descend,
    draw_batch,
    gradients,
    loss,
)
from manual_dp.school.tools.optimizers import KINDS
from manual_dp.school.tools.plain import random_numbers, tensor


def draw(random):
    """Draw weights, and two minibatches in pieces of different sizes."""
    for pieces, kind in zip((2, 3, 4, 1), KINDS):
        yield {**_draw_weights(random), "optimizer": kind,
               "steps": [[draw_batch(random, size)
                          for size in random.sample(range(1, 7), pieces)]
                         for _ in range(2)]}


def draw_ranks(random):
    """Draw the same for each rank; in a step all have equally many microbatches."""
    for world_size, kind in zip((2, 3, 4, 1), KINDS):
        pieces = [random.choice([2, 3]), 1 if world_size % 2 else 2]
        yield {**_draw_weights(random), "optimizer": kind,
               "steps": [[[draw_batch(random, random.randint(1, 6))
                           for _ in range(number)] for _ in range(world_size)]
                         for number in pieces]}


def _draw_weights(random):
    return {"lr": random.uniform(0.1, 1), "weight": random_numbers(random, 4, 3),
            "stale": random_numbers(random, 4, 3)}


def judge(judge_step, case, got):
    """Compare every step, by `judge_step`, with one on all rows, from right weights."""
    if (kind := case.get("optimizer", "SGD")) != "SGD":
        yield from _judge_kind(case, kind, got)
        return
    weight = tensor(case["weight"])
    for number, (step, result) in enumerate(zip(case["steps"], got, strict=True)):
        weight = yield from judge_step(case, number, step, weight, result)


def _judge_kind(case, kind, got):
    """Compare the weights after each step with those of another optimizer than SGD."""
    on_ranks = isinstance(got[0], list)  # so a step is a list for each rank
    steps = [sum(step, []) if on_ranks else step for step in case["steps"]]

    def whole(pieces):
        return [1 / sum(len(y) for _, y in pieces)] * len(pieces)
    wanted = descend([case["weight"]], steps, case["lr"], kind, whole)
    for number, (result, (weight,)) in enumerate(zip(got, wanted, strict=True)):
        yield about(f"{kind}, lr {case['lr']:.3f}, step {number + 1}")(
            "the weights", each(result, "weight") if on_ranks else result["weight"],
            [weight] * len(result) if on_ranks else weight, STEPPED)


def judge_step(case, number, pieces, weight, got):
    """Compare weights and loss of a step, then the order; return the right weights."""
    lr, n, sizes = case["lr"], len(pieces), [len(y) for _, y in pieces]
    total = sum(sizes)
    say = about(f"microbatches of {sizes} rows, lr {lr:.3f}, step {number + 1}")

    def moved(factors):
        return weight - lr * gradients([weight], pieces, factors)[0]

    def one_by_one(factors, keep):
        now, gradient = weight, 0
        for piece, factor in zip(pieces, factors):
            gradient = keep * gradient + gradients([now], [piece], [factor])[0]
            now = now - lr * gradient
        return now
    whole, large = [1 / total] * n, [1 / size for size in sizes]
    means = [factor / n for factor in large]
    right = moved(whole)
    order = [event for size in sizes for event in (f"forward {size}", "backward")]
    yield say("the weights", got["weight"], right, [
        ("nothing has moved", weight),
        ("this is the mean of the microbatches' means: a row of a small one counts "
         "more. Weigh each by its rows", moved(means)),
        (f"the means of {n} microbatches are added up, not averaged: the step is about "
         f"{n} times too large", moved(large)),
        ("this is the sum over all rows, not divided by their number", moved([1] * n)),
        *(("there was a step in every microbatch: one is wanted",
           one_by_one(factors, keep))
          for factors in (whole, means, large) for keep in (0, 1)),
        *(("only the last microbatch counts: clear gradients once, not in each",
           moved([0] * (n - 1) + factors[-1:])) for factors in (whole, means, large)),
        ("the last microbatch is left out: step after its backward, not before",
         moved([*whole[:-1], 0])),
        ("old gradients are in it: clear them before the first backward",
         number == 0 and right - lr * tensor(case["stale"]))])
    mean = loss([weight], pieces, whole)
    yield say("the mean loss of all rows", got["loss"], mean, tolerance=1e-6, hints=[
        ("this is the loss after the step; the one before it is wanted",
         loss([right], pieces, whole)),
        *(("this is the loss of the last microbatch alone",
           loss([now], pieces[-1:])) for now in (weight, right))])
    yield say("what happens, with how many rows", got["events"], order, [
        ("all rows go through at once: there is no memory for that",
         f"forward {total}" in got["events"]),
        ("call backward after each forward: until then its graph is kept", True)])
    yield say("tensors that autograd still holds when the next forward begins",
              got["kept"], 0, [
        ("the graph of a microbatch is still there: no retain_graph, one backward each",
         True)])
    return right


def judge_step_of_ranks(case, number, ranks, weight, got):
    """Compare every rank's weights, then count averages; return the right weights."""
    lr, k, n = case["lr"], len(ranks), len(ranks[0])
    sizes = [[len(y) for _, y in pieces] for pieces in ranks]
    total, weights = sum(map(sum, sizes)), each(got, "weight")
    averaged = each(got, "averaged")
    say = about(f"{k} ranks, microbatches of {sizes} rows, lr {lr:.3f}, "
                f"step {number + 1}")

    def moved(divisor):
        factors = [1 / divisor(size, own) for own in sizes for size in own]
        return [weight - lr * gradients([weight], sum(ranks, []), factors)[0]] * k
    stale = lr * tensor(case["stale"])
    right = moved(lambda size, own: total)
    yield say("the weights on each rank", weights, right, [
        ("nothing has moved", [weight] * k),
        ("replicas differ: one stepped with a gradient that was not averaged. Step "
         "after the last backward, whose forward stands outside of no_sync",
         unequal(weights)),
        (f"the step is {k} times too small: DDP takes the mean over ranks, so a sum "
         "needs the factor world_size", k > 1 and moved(lambda size, own: total * k)),
        (f"the step is {k} times too large: DDP has divided by the number of ranks",
         k > 1 and moved(lambda size, own: total / k)),
        ("this is the mean of the ranks' means: a row of a rank with few rows counts "
         "more", moved(lambda size, own: sum(own) * k)),
        ("this is a mean of means: a row of a small microbatch counts more",
         moved(lambda size, own: size * n * k)),
        (f"the means of {n} microbatches are added up, not averaged",
         moved(lambda size, own: size * k)),
        ("old gradients are in it: clear them before the first backward",
         number == 0 and [right[0] - stale] * k),
        ("one step is wanted, after the last microbatch, and gradients are cleared "
         "once, before the first", n > 1)])
    yield say("how often does DDP average gradients?", averaged, [1] * k, [
        ("no_sync is for all microbatches but the last; and the forward must stand "
         "inside it: the forward decides", averaged[0] == n),
        ("leave averaging to DDP, in the last backward", True)])
    yield say("messages beside DDP's", each(got, "others"), [0] * k, [
        ("when the last backward returns, DDP has averaged: nothing is left to do",
         True)])
    return right[0]


def judge_one_by_one(case, number, ranks, weight, got):
    """Judge a step on ranks, then what autograd kept; return the right weights."""
    right = yield from judge_step_of_ranks(case, number, ranks, weight, got)
    sizes = [[len(y) for _, y in pieces] for pieces in ranks]
    yield about(f"{len(ranks)} ranks, microbatches of {sizes} rows")(
        "tensors that autograd still holds when a forward begins, on each rank",
        each(got, "kept"), [0] * len(ranks), [
            ("call backward after each forward: until then its graph is kept", True)])
    return right
