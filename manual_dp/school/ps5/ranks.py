"""Problem set 5, the four programs that need ranks: what is drawn, what is right.

    RANKS        name -> (draw, judge)
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import close, differ, random_numbers
from manual_dp.school.ps5.clues import KS
from manual_dp.school.ps5.linear import draw_rows, gradients, stepped

WORLD_SIZES = (2, 3)


def _draw_hook(random):
    for world_size in WORLD_SIZES:
        yield {"k": KS, "world_size": world_size, "problems": [
            {"first": [random_numbers(random, 4, 3), random_numbers(random, 4)],
             "second": [random_numbers(random, 4, 4), random_numbers(random, 4)],
             "batches": [[list(draw_rows(random, 3).values()) for _ in range(2)]
                         for _ in range(world_size)]} for _ in range(2)]}


def _judge_hook(problem, ranks):
    k = len(problem["batches"])
    who = f"repaired_3, {k} ranks"
    params = [*problem["first"], *problem["second"]]
    own = [[_deep(params, batch) for batch in rank] for rank in problem["batches"]]
    mean = [_mean([own[rank][i] for rank in range(k)]) for i in range(2)]
    added = [mean[0], _mean([_sum(mean[0], mean[1])])]
    return _absent(who, ranks) or differ(
        f"{who}; gradients on every rank after the first backward, None where a "
        "parameter is frozen", [rank["grads"][0] for rank in ranks],
        [mean[0]] * k, [
            ("every rank has its own gradient: the hook is handed the parameter, "
             "and what it returns is not used", [rank[0] for rank in own]),
            ("this is the sum; the mean is wanted",
             [_mean([mean[0]], 1 / k)] * k),
            ("each is divided, but nothing was added up",
             [_mean([rank[0]], k) for rank in own]),
            ("some parameters have the mean, others do not: hook every one that "
             "wants a gradient", any(close(mine, right) for mine, right in zip(
                 ranks[0]["grads"][0], mean[0]) if right))]) or differ(
        f"{who}; gradients after a second backward, nothing zeroed in between",
        [rank["grads"][1] for rank in ranks], [added[1]] * k, [
            ("average after every backward, and all that is in p.grad", True)
        ]) or differ(
        f"{who}; the parameters, which nobody should change",
        [rank["params"] for rank in ranks], [params] * k)


def _deep(params, batch):
    W1, b1, W2, b2 = (torch.tensor(p, dtype=torch.float64).requires_grad_()
                      for p in params)
    X, y = batch
    loss = F.cross_entropy(torch.tanh(torch.tensor(X, dtype=torch.float64) @ W1.T + b1)
                           @ W2.T + b2, torch.tensor(y))
    W1g, W2g, b2g = torch.autograd.grad(loss, (W1, W2, b2))
    return [W1g.tolist(), None, W2g.tolist(), b2g.tolist()]


def _mean(lists, count=None):
    """Return the sum of lists of gradients, divided by `count`, or their number."""
    return [None if parts[0] is None else
            (sum(torch.tensor(part, dtype=torch.float64) for part in parts)
             / (count or len(lists))).tolist() for parts in zip(*lists)]


def _sum(*lists):
    return _mean(lists, 1)


def _draw_double(random):
    for world_size in WORLD_SIZES:
        yield {"k": KS, "world_size": world_size, "problems": [
            {"lr": random.uniform(0.2, 1),
             "params": [[random_numbers(random, 4, 3), random_numbers(random, 4)]
                        for _ in range(world_size)],
             "batches": [[list(draw_rows(random, 3).values()) for _ in range(2)]
                         for _ in range(world_size)]} for _ in range(2)]}


def _judge_double(problem, ranks):
    k, lr = len(problem["batches"]), problem["lr"]

    def after(factor):
        params = problem["params"][0]
        for batches in zip(*problem["batches"]):
            params = stepped(params, gradients(params, batches), lr * factor)
        return [params] * k
    who = f"repaired_7, {k} ranks, two steps with lr {lr:.3f}"
    return _absent(who, ranks) or differ(
        f"{who}; the model on every rank", [rank["params"] for rank in ranks],
        after(1), [
            (f"steps are {k} times too small: DDP's mean was divided again",
             after(1 / k)),
            (f"steps are {k} times too large: nothing divides the sum", after(k)),
            ("replicas differ: who gives all ranks rank 0's weights, and who "
             "averages?", any(not close(rank["params"], ranks[0]["params"])
                              for rank in ranks))]) or _sent(who, ranks, 2)


def _draw_no_sync(random):
    for world_size in WORLD_SIZES:
        yield {"k": KS, "world_size": world_size, "problems": [
            {"lr": random.uniform(0.2, 1),
             "params": [random_numbers(random, 4, 3), random_numbers(random, 4)],
             "steps": [[[list(draw_rows(random, 2).values()) for _ in range(count)]
                        for _ in range(2)] for _ in range(world_size)]}
            for count in (1, 3)]}


def _judge_no_sync(problem, ranks):
    k, lr, count = len(problem["steps"]), problem["lr"], len(problem["steps"][0][0])

    def after(factor, first=0):
        params = problem["params"]
        for step in zip(*problem["steps"]):
            batches = [batch for rank in step for batch in rank[first:]]
            params = stepped(params, gradients(params, batches), lr * factor)
        return [params] * k
    who = f"repaired_8, {k} ranks, two steps of {count} microbatches"
    return _absent(who, ranks) or differ(
        f"{who}, lr {lr:.3f}; the model on every rank",
        [rank["params"] for rank in ranks], after(1), [
            (f"steps are {count} times too large: the mean over the microbatches "
             "is wanted", count > 1 and after(count)),
            ("only the last microbatch counts", after(1, count - 1)),
            ("replicas differ: the last microbatch must send",
             any(not close(rank["params"], ranks[0]["params"])
                 for rank in ranks))]) or _sent(who, ranks, 2) or differ(
        f"{who} of 2 rows; rows in each call of the model on rank 0",
        ranks[0]["rows"], [2] * (2 * count), [
            ("more rows at once need more memory: call the model on one "
             "microbatch", True)])


def _draw_zero(random):
    for world_size in WORLD_SIZES:
        yield {"k": KS, "world_size": world_size, "problems": [
            {"params": [random_numbers(random, 3, 3), random_numbers(random, 3)],
             "sizes": sizes, **draw_rows(random, sum(sizes), 3)}
            for sizes in ([9, 4, 6][:world_size], [7, 0, 5][:world_size])]}


def _judge_zero(problem, ranks):
    W, b = (torch.tensor(p, dtype=torch.float64) for p in problem["params"])
    scores = torch.tensor(problem["X"], dtype=torch.float64) @ W.T + b
    right = (scores.argmax(1) == torch.tensor(problem["y"])).double()
    parts = [part.mean().item() for part in right.split(problem["sizes"])
             if len(part)]
    who = f"repaired_9, ranks with {problem['sizes']} rows"
    return _absent(who, ranks) or differ(
        f"{who}; the accuracy on rank 0", ranks[0]["accuracy"],
        right.mean().item(), [
            ("this counts rank 0's rows only", parts[0]),
            ("the hits are those of all ranks, the number of rows is rank 0's, "
             "times the ranks",
             right.sum().item() / problem["sizes"][0] / len(problem["sizes"])),
            ("this is the mean of the ranks' accuracies; their rows differ in "
             "number", sum(parts) / len(problem["sizes"]))],
        1e-6)  # torch divides whole numbers in float32


def _each_problem(judge):
    def judge_all(case, got):
        for i, problem in enumerate(case["problems"]):
            if wrong := judge(problem, [rank[i] for rank in got["ranks"]]):
                return wrong
        return None
    return judge_all


def _absent(who, ranks):
    return differ(f"{who}; ranks missing at a collective that others wait in",
                  max(rank["absent"] for rank in ranks), 0,
                  [("a collective stands where not every rank comes by", True)])


def _sent(who, ranks, steps, size=16):
    sent = [rank["sent"] for rank in ranks]
    return differ(f"{who}, gradients of {size} numbers; numbers handed to all-reduces, "
                  "by rank", sent, [steps * size] * len(ranks), [
        ("numbers are sent that nobody needs", all(
            number > steps * size for number in sent))])


RANKS = {"hook": (_draw_hook, _each_problem(_judge_hook)),
         "double_averaging": (_draw_double, _each_problem(_judge_double)),
         "no_sync": (_draw_no_sync, _each_problem(_judge_no_sync)),
         "rank_zero_only": (_draw_zero, _each_problem(_judge_zero))}
