"""Problem set 5, find the bug: what is drawn, and what a repaired program would do.

    ROWS         the rows of the chart, in words
    GIVES_AWAY   for each patient: row -> the number there at k

Here: the clues, and six of the repairs; the four that need ranks are in ranks.py.
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import Exercise, about, close, differ, shorten, times
from manual_dp.school.ps5.ranks import AT_ONCE, RANKS
from manual_dp.school.ps5.run import KS
from manual_dp.school.sums import in_place
from manual_dp.school.tools.devices import UNKNOWN
from manual_dp.school.tools.linear import STEPPED, descend, draw_batch, draw_layer
from manual_dp.school.tools.optimizers import KINDS
from manual_dp.school.tools.plain import numbers, random_numbers, tensor

SHAPES = [(3,), (2, 3)]
ROWS = {
    "replicas": "different replicas after a step",
    "gradient": "gradient that is stepped with / one device's",
    "step": "change of the weights / one device's",
    "weight": "weight of a last shard's row / a first shard's",
    "messages": "all-reduces of each gradient in a step",
    "absent": "ranks missing at a collective",
    "orders": "different orders in 3 epochs",
    "lost": "rows that no rank sees in an epoch",
    "accuracy": "on the test set",
}


def _last_of_ten(k):
    rows = -(-10 // k)  # ceil: the shards before the last
    return rows / (10 - (k - 1) * rows)


GIVES_AWAY = {
    "rebinding": {"replicas": lambda k: k},
    "aliasing": {"step": lambda k: 2 ** (k - 1), "gradient": lambda k: 2 ** (k - 1)},
    "hook": {"replicas": lambda k: k, "weight": lambda k: float(k == 1)},
    "set_epoch": {"orders": lambda k: 1},
    "mean_of_means": {"weight": _last_of_ten},
    "stale_gradients": {"step": lambda k: (k + 1) / 2},
    "double_averaging": {"messages": lambda k: 2},
    "no_sync": {"messages": lambda k: k},
    "rank_zero_only": {"absent": lambda k: k - 1},
    "adam_hides": {"gradient": lambda k: k},
}
PATIENTS = list(GIVES_AWAY)


def _judge_clue(name, got):
    """Yield what is not right in the clues that the learner's function gave."""
    clue, rows = f"clue_{PATIENTS.index(name) + 1}", GIVES_AWAY[name]
    for k, (row, number) in zip(KS, got["clues"], strict=True):
        known = isinstance(row, str) and row in ROWS
        right = known and row in rows
        same = right and rows[row](1) != rows[row](4) and all(
            close(other, got["clues"][0][1]) for _, other in got["clues"])
        yield differ(
            f"{clue}({k}), a row of the broken program's chart at k = {k}",
            [row, number], [row, rows[row](k)] if right else
            "a row that is not healthy, and its number", [
                ("there is no such row; there are " + ", ".join(ROWS), not known),
                ("accuracy goes up and down for many reasons", row == "accuracy"),
                ("that row is as it should be", not right),
                ("the row is right, but the number changes with k", same),
                ("the row is right; the number in the chart is another", True)])


def _draw_rebinding(random, number):
    shape = [(4,), (2, 3)][number % 2]
    return {"tensors": random_numbers(random, 1 + number // 2, *shape)}


def _judge_rebinding(case, got):
    tensors = tensor(case["tensors"])
    k, total = len(tensors), tensors.sum(dim=0)
    say = about(f"repaired_1, {k} ranks that hold {shorten(case['tensors'])}")
    yield say("afterwards", got["tensors"], [total] * k, [
        ("the list holds the sums, the tensors do not: data[i] = still puts another "
         "tensor into the list", close(got["list"], numbers([total] * k))),
        ("the sum never leaves rank 0", [total, *tensors[1:]]),
        ("this is the mean; the sum is wanted", [total / k] * k),
        ("the tensors hold what they held", tensors)])
    yield say("then 10 was added to rank 0's tensor, 100 to rank 1's, ...",
              got["written"], [total + 10 ** (rank + 1) for rank in range(k)],
              [("ranks share memory: copy the numbers, not the tensor", True)])
    yield in_place(f"repaired_1, {k} ranks; the tensors' memory", got["memory"],
                   [total] * k)


def _draw_aliasing(random, world_size):
    params, *pulls = [[random_numbers(random, *shape) for shape in SHAPES]
                      for _ in range(1 + world_size)]
    return {"params": params, "pulls": pulls, "trained": world_size % 2 == 0}


def _judge_aliasing(case, got):
    params, pulls = case["params"], case["pulls"]
    no_gradient = got["grads"][0][0] is None
    say = about(f"repaired_2, parameters of shapes {SHAPES}, {len(pulls)} devices")
    yield say("afterwards", got["made"], [params] * len(pulls))
    yield say("each replica had a backward of its own; its gradients", got["grads"],
              pulls, [
        ("a copy hangs on the graph of what it was copied from: detach it",
         case["trained"] and no_gradient),
        ("replicas do not want gradients", no_gradient),
        ("replicas are one tensor, whose gradient adds up", True)])
    yield say("then each replica was written into; the parameters", got["source"],
              params, [("a replica shares memory with the parameters", True)])
    yield say("then 10 was added to replica 0, 100 to replica 1, ...", got["written"],
              [[tensor(p) + 10 ** (rank + 1) for p in params]
               for rank in range(len(pulls))], [("replicas share memory", True)])
    yield say("the parameters' own gradients", got["source's gradients"],
              [torch.ones(shape) if case["trained"] else None for shape in SHAPES], [
        ("leave the parameters' own gradients alone: they are in the middle of "
         "training", True)])
    yield say("do the parameters want gradients now?", got["source wants gradients"],
              [case["trained"]] * len(params), [
        ("requires_grad_() was called on the parameters: call it on their copies",
         True)])
    if len(pulls) > 1 and got["homes"] != UNKNOWN:
        yield say("then once more, with a device called meta; on which device is each?",
                  got["homes"], ["meta"] * len(params), [
            ("move each tensor to the device: detach().to(device, copy=True)", True)])


def _draw_epochs(random, world_size, rows):
    return {"world_size": world_size, "epochs": 4,
            "dataset": random.sample(range(1000), rows)}


def _judge_epochs(case, got):
    rows, k, count = case["dataset"], case["world_size"], case["epochs"]
    say = about(f"repaired_4, {len(rows)} rows, world_size {k}, {count} epochs")
    epochs = list(zip(*got["seen"], strict=True))  # [epoch][rank]
    size = -(-len(rows) // k)
    sizes = [[len(rank) for rank in epoch] for epoch in epochs]
    orders = [sum(epoch, []) for epoch in epochs]
    different = len(set(map(tuple, orders)))
    shards = {tuple(sorted(epoch[0])) for epoch in epochs}
    yield say("rows a rank, in each epoch", sizes, [[size] * k] * count, [
        ("every rank goes through the whole dataset", [[len(rows)] * k] * count),
        ("drop_last leaves rows out", [[size - 1] * k] * count)])
    yield say("rows that no rank sees, in each epoch",
              [len(set(rows).difference(order)) for order in orders], [0] * count, [
        ("ranks shuffle with seeds of their own: the seed must be the same for all",
         True)])
    yield say("different orders", different, count, [
        ("the order never changes: the sampler is not told the epoch", different == 1),
        ("two epochs have the same order: is the sampler told the epoch before the "
         "loop over the loader?", True)])
    yield say("does rank 0 keep the same rows for ever?", k > 1 and len(shards) == 1,
              False, [("shuffle all rows, then deal them out: these were dealt out "
                       "first", True)])


def _draw_means(random, *sizes):
    return {"sizes": list(sizes), "batch": draw_batch(random, sum(sizes)),
            "W": random_numbers(random, 3, 4)}


def _judge_means(case, got):
    sizes, W, (X, y) = case["sizes"], tensor(case["W"]), map(tensor, case["batch"])
    errors = (X @ W).softmax(1) - F.one_hot(y.long(), 4)
    sums = [rows.T @ error for rows, error in zip(X.split(sizes), errors.split(sizes))]
    means = [s / size for s, size in zip(sums, sizes) if size]
    k, total = len(sizes), sum(sums)
    yield about("repaired_5")(
        f"shards of {sizes} rows, random labels", got["grad"], total / len(X), [
        ("this is still the mean of the shards' means", sum(means) / k),
        ("this is the sum over all rows", total),
        ("divide by the rows, not by the shards", total / k),
        ("divide by the rows of all shards: they do not have equally many",
         total / k / sizes[0]),
        ("this is the sum of the means", sum(means))])
    yield about("repaired_5")(
        f"shards of {sizes} rows, asked a second time at the same W", got["again"],
        total / len(X), [("backward adds to W.grad, and what was there counts too: "
                          "torch.autograd.grad leaves it alone", True)])


def _draw_stale(random, accumulate, kind):
    return {"accumulate": accumulate, "lr": random.uniform(0.2, 1), "optimizer": kind,
            "params": draw_layer(random),
            "batches": [draw_batch(random, 2) for _ in range(2 * accumulate)]}


def _judge_stale(case, got):
    n, lr, params = case["accumulate"], case["lr"], case["params"]
    first, *others = batches = case["batches"]
    steps = batches[:n], batches[n:]
    early = descend(params, [[first]], lr / n)[0]
    say = about(f"repaired_6, {2 * n} microbatches of 2 rows, accumulate {n}, "
                f"lr {lr:.3f}")
    if (kind := case["optimizer"]) != "SGD":
        yield say(f"the model afterwards, with {kind}", got["params"],
                  descend(params, steps, lr, kind)[-1], STEPPED)
        return
    yield say("the model afterwards", got["params"], descend(params, steps, lr)[-1], [
        ("nothing has moved", params),
        (f"steps are {n} times too large: the mean over {n} microbatches is wanted",
         descend(params, steps, lr * n)[-1]),
        ("a step is taken after the first microbatch of each group",
         descend(early, [others[:n]], lr)[0]),
        ("gradients go into more than one step, or are lost: one step and one "
         "zero_grad for every group", True)])
    yield say("most rows under way at once", max(got["rows"]), 2, AT_ONCE)


def _draw_scale(random, world_size, kind):
    return {"lr": random.uniform(0.2, 1), "optimizer": kind,
            "params": draw_layer(random),
            "steps": [[draw_batch(random, 3) for _ in range(world_size)]
                      for _ in range(2)]}


def _judge_scale(case, got):
    steps, lr, params = case["steps"], case["lr"], case["params"]
    kind = case["optimizer"]
    wanted = descend(params, steps, lr, kind)
    first, right = got["params"][0], numbers(wanted[0])
    factor = times(*(numbers([tensor(after) - tensor(p) for after, p in
                              zip(moved, params)]) for moved in (first, right)))
    say = about(f"repaired_10, {len(steps[0])} shards of 3 rows, two steps with "
                f"lr {lr:.3f}")
    if kind != "SGD":
        yield say(f"{kind}; the model after each", got["params"], wanted,
                  STEPPED)
        return
    yield say("the model after each", got["params"], wanted, [
        ("the first step is right, the second is not", close(first, right)),
        ("only the last shard counts",
         descend(params, [shards[-1:] for shards in steps], lr)),
        (f"the first step is {factor:.4g} times as long as it should be",
         factor == factor)])


# the arguments of draw, case by case; draw; judge
HERE = {"rebinding": ([[number] for number in range(8)],
                      _draw_rebinding, _judge_rebinding),
        "aliasing": ([[1], [2], [3], [4]], _draw_aliasing, _judge_aliasing),
        "set_epoch": ([[1, 16], [2, 24], [3, 25], [4, 32]],
                      _draw_epochs, _judge_epochs),
        "mean_of_means": ([[4, 3], [5, 5, 2], [2, 2, 1, 0], [3, 1], [4, 4, 4, 1], [5]],
                          _draw_means, _judge_means),
        "stale_gradients": (list(zip((2, 3, 4, 1), KINDS)), _draw_stale, _judge_stale),
        "adam_hides": (list(zip((2, 3, 4, 1), KINDS)), _draw_scale, _judge_scale)}


def _exercise(number, name):
    arguments, draw, judge = {**HERE, **RANKS}[name]

    def draw_all(random):
        return (draw(random, *one) for one in arguments)

    def judge_both(case, got):
        for problem in filter(None, _judge_clue(name, got)):
            yield f"{problem}\nThe clue is wrong; the repair has not been judged yet."
        for problem in filter(None, judge(case, got)):
            yield f"{problem}\nThe clue is right; the repair is not right yet."
    return Exercise(f"ps5/{name}", 2, draw_all, judge_both, 20 if name in RANKS else 10,
                    answers=(f"clue_{number}", f"repaired_{number}"), cells=(name,))


EXERCISES = [_exercise(number, name) for number, name in enumerate(PATIENTS, 1)]
WORDS = {"words": 4}  # points that a person gives, by grade id
