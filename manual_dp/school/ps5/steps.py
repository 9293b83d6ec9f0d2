"""Problem set 5, programs that step too far: what is drawn, what is right.

    STEPS        name -> (draw, judge)
    draw_rows    rows and labels, as lists
    gradients    of a linear model, the mean over microbatches of mean losses
    stepped      parameters after a step of SGD
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import close, differ, random_numbers
from manual_dp.school.ps5.clues import KS


def draw_rows(random, rows, classes=4):
    """Draw {"X", "y"}: rows of three numbers each, and labels."""
    return {"X": random_numbers(random, rows, 3),
            "y": [random.randrange(classes) for _ in range(rows)]}


def gradients(params, batches):
    """Return the gradients, as lists, of the mean of the batches' mean losses."""
    W, b = (torch.tensor(p, dtype=torch.float64).requires_grad_() for p in params)
    losses = [F.cross_entropy(torch.tensor(X, dtype=torch.float64) @ W.T + b,
                              torch.tensor(y)) for X, y in batches]
    return [g.tolist() for g in torch.autograd.grad(sum(losses) / len(losses), (W, b))]


def stepped(params, grads, lr):
    """Return the parameters, as lists, after a step against the gradients."""
    return [(torch.tensor(p, dtype=torch.float64)
             - lr * torch.tensor(g, dtype=torch.float64)).tolist()
            for p, g in zip(params, grads)]


def _draw_stale(random):
    for accumulate in (1, 2, 3, 4):
        yield {"k": KS, "accumulate": accumulate, "lr": random.uniform(0.2, 1),
               "params": [random_numbers(random, 4, 3), random_numbers(random, 4)],
               "batches": [list(draw_rows(random, 2).values())
                           for _ in range(2 * accumulate)]}


def _judge_stale(case, got):
    n, lr, grads, params = case["accumulate"], case["lr"], [], case["params"]
    halves = case["batches"][:n], case["batches"][n:]
    for half in halves:
        grads.append(gradients(params, half))
        params = stepped(params, grads[-1], lr)
    one = stepped(case["params"], gradients(case["params"], halves[0]), lr)
    large = stepped(case["params"], gradients(case["params"], halves[0]), lr * n)
    large = stepped(large, gradients(large, halves[1]), lr * n)
    late = stepped(case["params"], gradients(case["params"], halves[0][:1]), lr / n)
    late = stepped(late, gradients(late, (halves[0] + halves[1][:1])[1:]), lr)
    who = f"repaired_6, {2 * n} microbatches of 2 rows, accumulate {n}, lr {lr:.3f}"
    return differ(f"{who}; the model afterwards", got["params"], params, [
        ("only one step has been taken", one),
        ("nothing has moved", case["params"]),
        (f"steps are {n} times too large: the mean over {n} microbatches is wanted",
         large),
        ("a step is taken after the first microbatch of each group", late),
        ("gradients go into more than one step, or are lost: one step and one "
         "zero_grad for every group", True)]) or differ(
        f"{who}; rows in each call of the model", got["rows"], [2] * (2 * n))


def _draw_scale(random):
    for world_size in (1, 2, 3, 4):
        yield {"k": KS, "lr": random.uniform(0.2, 1),
               "params": [random_numbers(random, 4, 3), random_numbers(random, 4)],
               "steps": [[list(draw_rows(random, 3).values())
                          for _ in range(world_size)] for _ in range(2)]}


def _judge_scale(case, got):
    k, lr, params = len(case["steps"][0]), case["lr"], case["params"]
    wanted, large = [], []
    for shards in case["steps"]:
        before = params if not large else large[-1]
        large.append(stepped(before, gradients(before, shards), k * lr))
        params = stepped(params, gradients(params, shards), lr)
        wanted.append(params)
    return differ(f"repaired_10, {k} shards of 3 rows, two steps of SGD with lr "
                  f"{lr:.3f}; the model after each", got["params"], wanted, [
        (f"the step is {k} times too large", k > 1 and close(got["params"], large)),
        ("the first step is right, the second is not",
         close(got["params"][0], wanted[0]))])


STEPS = {"stale_gradients": (_draw_stale, _judge_stale),
         "adam_hides": (_draw_scale, _judge_scale)}
