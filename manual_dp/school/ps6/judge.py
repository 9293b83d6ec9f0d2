"""Problem set 6, batch normalisation and accumulation: what is drawn, what is right.

Here: the exercises, and statistics and sums over ranks. The rest is in norm.py and
accumulate.py.
"""

import torch

from manual_dp.school.exercise import Exercise, close, differ, random_numbers, shorten
from manual_dp.school.ps6 import accumulate, norm
from manual_dp.school.ps6.shards import draw_sizes, each, lists, on_all, rows, variance


def _draw_statistics(random):
    for world_size in (2, 3, 4, 1):
        features = random.randint(2, 3)
        yield {"features": features,
               "shards": [random_numbers(random, size, features)
                          for size in draw_sizes(random, world_size)]}


def _judge_statistics(case, got):
    shards = [rows(shard, case["features"]) for shard in case["shards"]]
    sizes, k, x = [len(s) for s in shards], len(shards), torch.cat(shards)
    mean, var = x.mean(0), x.var(0, unbiased=False)
    means = [s.mean(0) for s in shards]
    around_own = [variance(s) for s in shards]
    pooled = sum(len(s) * v for s, v in zip(shards, around_own) if len(s)) / len(x)
    who = f"{k} ranks with {sizes} rows: {shorten(case['shards'])}"
    return (differ(f"{who}; the mean on each rank", each(got, "mean"),
                   on_all(k, mean), [
        ("every rank has the mean of its own rows", lists(means)),
        ("this is the mean of the ranks' means: a rank with few rows counts as much "
         "as one with many. Add up sums and counts", on_all(k, sum(means) / k)),
        ("this is the sum: divide by the rows of all ranks", on_all(k, x.sum(0))),
        ("the sum is that of all ranks, the count is not",
         lists([x.sum(0) / size for size in sizes])),
        ("the sum was divided by the number of ranks, not of rows",
         on_all(k, x.sum(0) / k))])
        or differ(f"{who}; the variance on each rank", each(got, "var"),
                  on_all(k, var), [
            ("every rank has the variance of its own rows", lists(around_own)),
            ("this is the unbiased variance: divide by the rows, not by rows - 1",
             on_all(k, x.var(0))),
            ("this is the mean of the ranks' variances: it leaves out how far the "
             "ranks' means are apart", on_all(k, sum(around_own) / k)),
            ("every rank took squares around its own mean: this leaves out how far "
             "the ranks' means are apart", on_all(k, pooled)),
            ("this is the mean of the squares: the square of the mean must come off",
             on_all(k, (x * x).mean(0))),
            ("this is the standard deviation", on_all(k, var.sqrt()))])
        or k > 1 and differ(f"{k} ranks; how often does each communicate?",
                            each(got, "calls"), [1] * k, [
            ("put sums, squares and count into one tensor, and sum that", True)])
        or None)


def _draw_sum(random):
    for world_size in (2, 3, 4, 1):
        shape = random.choice([(), (2,), (3,), (2, 3)])
        yield {name: random_numbers(random, world_size, *shape)
               for name in ("x", "t", "weights")}


def _judge_sum(case, got):
    x, weights = rows(case["x"]), rows(case["weights"])
    k, gradient = len(x), each(got, "x.grad")
    who = f"{k} ranks, x = {shorten(case['x'], 150)}"
    back = f"{who}; the gradients that arrive are {shorten(case['weights'], 150)}"
    return (differ(f"{who}; y = AllReduceSum.apply(x) on each rank", each(got, "y"),
                   on_all(k, x.sum(0)), [
        ("every rank has its own x: nothing was added", case["x"]),
        ("this is the mean; the sum is wanted", on_all(k, x.mean(0)))])
        or differ(f"{who}; x afterwards", each(got, "x"), case["x"], [
            ("dist.all_reduce writes into the tensor that it is given: clone first",
             True)])
        or differ(f"{back}; x.grad on each rank", gradient,
                  on_all(k, weights.sum(0)), [
            ("no gradient comes back to x",
             gradient == [None] * k or close(gradient, (0 * weights).tolist())),
            ("the gradient goes back as if y were x. But a rank's x is in every "
             "rank's y: what comes back is the sum over ranks", case["weights"]),
            ("this is the own gradient, times the number of ranks; but the ranks' "
             "gradients are different", (k * weights).tolist()),
            ("this is the mean over ranks; the sum is wanted",
             on_all(k, weights.mean(0))),
            ("this is the own gradient, divided by the number of ranks; the sum of all "
             "is wanted", (weights / k).tolist()),
            ("every rank has rank 0's gradient; the sum over ranks is wanted",
             on_all(k, weights[0]))])
        or differ(f"{back}; the gradient that also goes to another tensor, t",
                  each(got, "t.grad"), case["weights"], [
            ("backward writes into the gradient that it is given, and others use that "
             "too: clone first", True)]))


EXERCISES = [
    Exercise("ps6/global_statistics", 3, _draw_statistics, _judge_statistics, 20),
    Exercise("ps6/allreduce_sum", 3, _draw_sum, _judge_sum, 20,
             answers=("AllReduceSum",)),
    Exercise("ps6/sync_batch_norm", 5, norm.draw, norm.judge, 20,
             answers=("SyncBatchNorm",),
             cells=("global_statistics", "allreduce_sum", "sync_batch_norm")),
    Exercise("ps6/accumulate", 3, accumulate.draw, accumulate.judge),
    Exercise("ps6/accumulate_ddp", 3, accumulate.draw_ranks, accumulate.judge_ranks,
             20),
]
