"""Problem set 5, find the bug: what is drawn, and what a repaired program would do.

Six of the ten; the four that need ranks are in ranks.py, the clues of all in clues.py.
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import (
    Exercise,
    close,
    differ,
    random_numbers,
    shorten,
    times,
)
from manual_dp.school.ps5.clues import KS, PATIENTS, judge_clue
from manual_dp.school.ps5.linear import draw_rows, gradients, stepped
from manual_dp.school.ps5.ranks import RANKS

SHAPES = [(3,), (2, 3)]


def _draw_rebinding(random):
    for world_size in (1, 2, 3, 4):
        for shape in ((4,), (2, 3)):
            yield {"k": KS, "tensors": [random_numbers(random, *shape)
                                        for _ in range(world_size)]}


def _judge_rebinding(case, got):
    tensors = torch.tensor(case["tensors"], dtype=torch.float64)
    k, total = len(tensors), tensors.sum(dim=0)
    everywhere = [total.tolist()] * k
    who = f"repaired_1, {k} ranks that hold {shorten(case['tensors'])}"
    alone = [total.tolist(), *tensors[1:].tolist()]
    return differ(who, got["tensors"], everywhere, [
        ("the list holds the sums, the tensors do not: data[i] = still puts another "
         "tensor into the list", close(got["list"], everywhere)),
        ("the sum never leaves rank 0", alone),
        ("this is the mean; the sum is wanted", [(total / k).tolist()] * k),
        ("the tensors hold what they held", tensors.tolist())]) or differ(
        f"{who}; then 10 was added to rank 0's tensor, 100 to rank 1's, ...",
        got["written"], [(total + 10 ** (rank + 1)).tolist() for rank in range(k)],
        [("ranks share memory: copy the numbers, not the tensor", True)])


def _draw_aliasing(random):
    for world_size in (1, 2, 3, 4):
        params = [random_numbers(random, *shape) for shape in SHAPES]
        yield {"k": KS, "params": params, "trained": world_size % 2 == 0,
               "pulls": [[random_numbers(random, *shape) for shape in SHAPES]
                         for _ in range(world_size)]}


def _judge_aliasing(case, got):
    params, pulls = case["params"], case["pulls"]
    who = f"repaired_2, parameters of shapes {SHAPES}, {len(pulls)} devices"

    def added(addend):
        return [(torch.tensor(p, dtype=torch.float64) + addend).tolist()
                for p in params]
    return (differ(who, got["made"], [params] * len(pulls))
            or differ(f"{who}; each replica had a backward of its own; its gradients",
                      got["grads"], pulls, [
                ("a copy hangs on the graph of what it was copied from: detach it",
                 case["trained"] and got["grads"][0][0] is None),
                ("replicas do not want gradients", got["grads"][0][0] is None),
                ("replicas are one tensor, whose gradient adds up", True)])
            or differ(f"{who}; then each replica was written into; the parameters",
                      got["source"], params,
                      [("a replica shares memory with the parameters", True)])
            or differ(f"{who}; then 10 was added to replica 0, 100 to replica 1, ...",
                      got["written"], [added(10 ** (r + 1)) for r in range(len(pulls))],
                      [("replicas share memory", True)]))


def _draw_epochs(random):
    for world_size, rows in ((1, 16), (2, 24), (3, 25), (4, 32)):
        yield {"k": KS, "world_size": world_size, "epochs": 4,
               "dataset": random.sample(range(1000), rows)}


def _judge_epochs(case, got):
    rows, k, count = case["dataset"], case["world_size"], case["epochs"]
    who = f"repaired_4, {len(rows)} rows, world_size {k}, {count} epochs"
    epochs = list(zip(*got["seen"], strict=True))  # [epoch][rank]
    size = -(-len(rows) // k)
    sizes = [[len(rank) for rank in epoch] for epoch in epochs]
    problem = differ(f"{who}; rows a rank, in each epoch", sizes, [[size] * k] * count,
                     [("every rank goes through the whole dataset",
                       sizes == [[len(rows)] * k] * count),
                      ("drop_last leaves rows out", sizes == [[size - 1] * k] * count)])
    lost = [len(set(rows) - {row for rank in epoch for row in rank})
            for epoch in epochs]
    orders = [[row for rank in epoch for row in rank] for epoch in epochs]
    different = len({tuple(order) for order in orders})
    shards = len({tuple(sorted(epoch[0])) for epoch in epochs})
    return (problem
            or differ(f"{who}; rows that no rank sees, in each epoch", lost,
                      [0] * count, [("ranks shuffle with seeds of their own: the seed "
                                     "must be the same for all", True)])
            or differ(f"{who}; different orders", different, count, [
                ("the order never changes: the sampler is not told the epoch",
                 different == 1),
                ("two epochs have the same order: is the sampler told the epoch before "
                 "the loop over the loader?", True)])
            or k > 1 and differ(f"{who}; does rank 0 keep the same rows for ever?",
                                shards == 1, False, [
                ("shuffle all rows, then deal them out: these were dealt out first",
                 True)]) or None)


def _draw_means(random):
    for sizes in ([4, 3], [5, 5, 2], [2, 2, 1, 0], [3, 1], [4, 4, 4, 1], [5]):
        yield {"k": KS, "sizes": sizes, **draw_rows(random, sum(sizes)),
               "W": random_numbers(random, 3, 4)}


def _judge_means(case, got):
    X, W = (torch.tensor(case[key], dtype=torch.float64) for key in "XW")
    y, sizes = torch.tensor(case["y"]), case["sizes"]
    sums = [X[a:b].T @ ((X[a:b] @ W).softmax(1) - F.one_hot(y[a:b], 4)) for a, b in
            zip((sum(sizes[:r]) for r in range(len(sizes))),
                (sum(sizes[:r + 1]) for r in range(len(sizes))))]
    right = sum(sums) / len(X)
    means = [s / size for s, size in zip(sums, sizes) if size]
    return differ(f"repaired_5, shards of {sizes} rows, random labels",
                  got["grad"], right.tolist(), [
        ("this is still the mean of the shards' means",
         (sum(means) / len(sizes)).tolist()),
        ("this is the sum over all rows", sum(sums).tolist()),
        ("divide by the rows, not by the shards", (sum(sums) / len(sizes)).tolist()),
        ("divide by the rows of all shards: they do not have equally many",
         (sum(sums) / len(sizes) / sizes[0]).tolist()),
        ("this is the sum of the means", sum(means).tolist())])


def _draw_stale(random):
    for accumulate in (2, 3, 4, 1):
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
    large = stepped(case["params"], gradients(case["params"], halves[0]), lr * n)
    large = stepped(large, gradients(large, halves[1]), lr * n)
    late = stepped(case["params"], gradients(case["params"], halves[0][:1]), lr / n)
    late = stepped(late, gradients(late, (halves[0] + halves[1][:1])[1:]), lr)
    who = f"repaired_6, {2 * n} microbatches of 2 rows, accumulate {n}, lr {lr:.3f}"
    return differ(f"{who}; the model afterwards", got["params"], params, [
        ("nothing has moved", case["params"]),
        (f"steps are {n} times too large: the mean over {n} microbatches is wanted",
         large),
        ("a step is taken after the first microbatch of each group", late),
        ("gradients go into more than one step, or are lost: one step and one "
         "zero_grad for every group", True)]) or differ(
        f"{who}; rows in each call of the model", got["rows"], [2] * (2 * n), [
            ("more rows at once need more memory: call the model on one microbatch",
             True)])


def _draw_scale(random):
    for world_size in (2, 3, 4, 1):
        yield {"k": KS, "lr": random.uniform(0.2, 1),
               "params": [random_numbers(random, 4, 3), random_numbers(random, 4)],
               "steps": [[list(draw_rows(random, 3).values())
                          for _ in range(world_size)] for _ in range(2)]}


def _judge_scale(case, got):
    k, lr, params = len(case["steps"][0]), case["lr"], case["params"]
    wanted, last = [], []
    for shards in case["steps"]:
        before = last[-1] if last else params
        last.append(stepped(before, gradients(before, shards[-1:]), lr))
        params = stepped(params, gradients(params, shards), lr)
        wanted.append(params)

    def moved(after):
        return stepped(after, case["params"], 1)  # after - before
    factor = times(moved(got["params"][0]), moved(wanted[0]))
    return differ(f"repaired_10, {k} shards of 3 rows, two steps of SGD with lr "
                  f"{lr:.3f}; the model after each", got["params"], wanted, [
        ("the first step is right, the second is not",
         close(got["params"][0], wanted[0])),
        ("only the last shard counts", last),
        (f"the first step is {factor:.4g} times as long as it should be",
         factor == factor)])


HERE = {"rebinding": (_draw_rebinding, _judge_rebinding),
        "aliasing": (_draw_aliasing, _judge_aliasing),
        "set_epoch": (_draw_epochs, _judge_epochs),
        "mean_of_means": (_draw_means, _judge_means),
        "stale_gradients": (_draw_stale, _judge_stale),
        "adam_hides": (_draw_scale, _judge_scale)}


def _exercise(number, name):
    draw, judge = {**HERE, **RANKS}[name]

    def judge_both(case, got):
        if problem := judge_clue(name, case, got):
            return f"{problem}\nThe clue is wrong; the repair has not been judged yet."
        problem = judge(case, got)
        return problem and f"{problem}\nThe clue is right; the repair is not right yet."
    return Exercise(f"ps5/{name}", 2, draw, judge_both, 20 if name in RANKS else 10,
                    answers=(f"clue_{number}", f"repaired_{number}"), cells=(name,))


EXERCISES = [_exercise(number, name) for number, name in enumerate(PATIENTS, 1)]
