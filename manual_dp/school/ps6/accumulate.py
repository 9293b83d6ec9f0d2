"""Accumulation, in one process and on ranks: what is drawn, and what would be right.

    draw, judge               one process
    draw_ranks, judge_ranks   on ranks, with torch's DDP

The truth is a step of SGD with the gradient of the mean loss of all rows at once.
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import close, differ, random_numbers
from manual_dp.school.ps6.shards import on_all, rows

FEATURES, CLASSES = 3, 4


def draw(random):
    """Draw weights, and two minibatches in pieces of different sizes."""
    for pieces in (2, 3, 4, 1):
        yield {**_draw_weights(random),
               "steps": [[_draw_rows(random, size)
                          for size in random.sample(range(1, 7), pieces)]
                         for _ in range(2)]}


def draw_ranks(random):
    """Draw the same for each rank; in a step all have equally many microbatches."""
    for world_size in (2, 3, 4, 1):
        pieces = [random.choice([2, 3]), 1 if world_size % 2 else 2]
        yield {**_draw_weights(random),
               "steps": [[[_draw_rows(random, random.randint(1, 6))
                           for _ in range(number)] for _ in range(world_size)]
                         for number in pieces]}


def _draw_weights(random):
    return {"lr": random.uniform(0.1, 1),
            "weight": random_numbers(random, CLASSES, FEATURES),
            "stale": random_numbers(random, CLASSES, FEATURES)}


def _draw_rows(random, size):
    y = random.choices(range(CLASSES), k=size)
    return random_numbers(random, size, FEATURES), y


def _gradient(weight, pieces, factors):
    """Return the gradient of the sum of factor * piece's summed loss, and that sum."""
    weight = weight.clone().requires_grad_()
    losses = [factor * F.cross_entropy(rows(X) @ weight.T, torch.tensor(y),
                                       reduction="sum")
              for (X, y), factor in zip(pieces, factors)]
    total = sum(losses)
    return torch.autograd.grad(total, weight)[0], total.item()


def judge(case, got):
    """Compare weights and loss with one step on the whole, then look at the order."""
    weight = rows(case["weight"])
    for number, pieces in enumerate(case["steps"]):
        problem, weight = _judge_step(case, number, pieces, weight,
                                      got["steps"][number])
        if problem:
            return problem
    return None


def _judge_step(case, number, pieces, weight, got):
    lr, n, sizes = case["lr"], len(pieces), [len(y) for _, y in pieces]
    total = sum(sizes)
    who = f"microbatches of {sizes} rows, lr {lr:.3f}, step {number + 1}"

    def moved(factors):
        return (weight - lr * _gradient(weight, pieces, factors)[0]).tolist()

    def one_by_one(factors, keep):
        now, gradient = weight, 0
        for piece, factor in zip(pieces, factors):
            gradient = keep * gradient + _gradient(now, [piece], [factor])[0]
            now = now - lr * gradient
        return now.tolist()
    whole, large = [1 / total] * n, [1 / size for size in sizes]
    means = [factor / n for factor in large]
    right = rows(moved(whole))
    order = [event for size in sizes for event in (f"forward {size}", "backward")]
    return (differ(f"{who}; the weights", got["weight"], right.tolist(), [
        ("nothing has moved", weight.tolist()),
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
         number == 0 and (right - lr * rows(case["stale"])).tolist())])
        or differ(f"{who}; the mean loss of all rows", got["loss"],
                  _gradient(weight, pieces, whole)[1], [
            ("this is the loss after the step; the one before it is wanted",
             _gradient(right, pieces, whole)[1]),
            ("this is the loss of the last microbatch alone",
             any(close(got["loss"], _gradient(now, pieces[-1:], large[-1:])[1])
                 for now in (weight, right)))])
        or differ(f"{who}; what happens, with how many rows", got["events"], order, [
            ("all rows go through at once: there is no memory for that",
             f"forward {total}" in got["events"]),
            ("call backward after each forward: until then its graph is kept", True)
        ])), right


def judge_ranks(case, got):
    """Compare every rank's weights with one step on all rows; count the averages."""
    weight = rows(case["weight"])
    for number, ranks in enumerate(case["steps"]):
        problem, weight = _judge_step_of_ranks(
            case, number, ranks, weight, [rank[number] for rank in got["ranks"]])
        if problem:
            return problem
    return None


def _judge_step_of_ranks(case, number, ranks, weight, got):
    lr, k, n = case["lr"], len(ranks), len(ranks[0])
    sizes = [[len(y) for _, y in pieces] for pieces in ranks]
    total, pieces = sum(map(sum, sizes)), sum(ranks, [])
    who = f"{k} ranks, microbatches of {sizes} rows, lr {lr:.3f}, step {number + 1}"

    def moved(divisor):
        factors = [1 / divisor(size, own) for own in sizes for size in own]
        return on_all(k, weight - lr * _gradient(weight, pieces, factors)[0])
    right = moved(lambda size, own: total)
    old = rows(right) - lr * rows(case["stale"])
    weights = [rank["weight"] for rank in got]
    averaged = [rank["averaged"] for rank in got]
    return (differ(f"{who}; the weights on each rank", weights, right, [
        ("nothing has moved", on_all(k, weight)),
        ("replicas differ: one stepped with a gradient that was not averaged. Step "
         "after the last backward, whose forward stands outside of no_sync",
         any(other != weights[0] for other in weights)),
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
         number == 0 and old.tolist()),
        ("one step is wanted, after the last microbatch, and gradients are cleared "
         "once, before the first", n > 1)])
        or differ(f"{who}; how often does DDP average gradients?", averaged, [1] * k, [
            ("no_sync is for all microbatches but the last; and the forward must "
             "stand inside it: the forward decides", averaged[0] == n),
            ("leave averaging to DDP, in the last backward", True)])
        or differ(f"{who}; messages beside DDP's", [rank["others"] for rank in got],
                  [0] * k, [("when the last backward returns, DDP has averaged: "
                             "nothing is left to do", True)])), rows(right)[0]
