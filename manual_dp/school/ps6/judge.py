"""Problem set 6, batch normalisation and accumulation: what is drawn, what is right.

Here: the exercises, and statistics and sums over ranks. The rest is in norm.py and
accumulate.py.
"""

import torch

from manual_dp.school.exercise import Exercise, random_numbers, shorten
from manual_dp.school.ps6 import accumulate, norm
from manual_dp.school.ps6.shards import draw_sizes, each, rows, variance
from manual_dp.school.tools.plain import tensor
from manual_dp.school.tools.tell import about


def _draw_statistics(random):
    for world_size in (2, 3, 4, 1):
        features = random.randint(2, 3)
        yield {"features": features,
               "shards": [random_numbers(random, size, features)
                          for size in draw_sizes(random, world_size)]}


def _judge_statistics(case, got):
    shards = rows(case, case["shards"])
    sizes, k, x = [len(shard) for shard in shards], len(shards), torch.cat(shards)
    mean, var = x.mean(0), variance(x)
    means, own = [shard.mean(0) for shard in shards], list(map(variance, shards))
    pooled = sum(size * v for size, v in zip(sizes, own) if size) / len(x)
    say = about(f"{k} ranks with {sizes} rows: {shorten(case['shards'])}")
    yield say("the mean on each rank", each(got, "mean"), [mean] * k, [
        ("every rank has the mean of its own rows", means),
        ("this is the mean of the ranks' means: a rank with few rows counts as much as "
         "one with many. Add up sums and counts", [sum(means) / k] * k),
        ("this is the sum: divide by the rows of all ranks", [x.sum(0)] * k),
        ("the sum is that of all ranks, the count is not",
         [x.sum(0) / size for size in sizes]),
        ("the sum was divided by the number of ranks, not of rows",
         [x.sum(0) / k] * k)])
    yield say("the variance on each rank", each(got, "var"), [var] * k, [
        ("every rank has the variance of its own rows", own),
        ("this is the unbiased variance: divide by the rows, not by rows - 1",
         [x.var(0)] * k),
        ("this is the mean of the ranks' variances: it leaves out how far the ranks' "
         "means are apart", [sum(own) / k] * k),
        ("every rank took squares around its own mean: this leaves out how far the "
         "ranks' means are apart", [pooled] * k),
        ("this is the mean of the squares: the square of the mean must come off",
         [(x * x).mean(0)] * k),
        ("this is the standard deviation", [var.sqrt()] * k)])
    if k > 1:
        yield say("how often does each communicate?", each(got, "calls"), [1] * k, [
            ("put sums, squares and count into one tensor, and sum that", True)])


def _draw_sum(random):
    for world_size in (2, 3, 4, 1):
        shape = random.choice([(), (2,), (3,), (2, 3)])
        yield {name: random_numbers(random, world_size, *shape)
               for name in ("x", "t", "weights")}


def _judge_sum(case, got):
    x, weights, k = tensor(case["x"]), tensor(case["weights"]), len(case["x"])
    say = about(f"{k} ranks, x = {shorten(case['x'], 150)}")
    back = f"the gradients that arrive are {shorten(case['weights'], 150)};"
    yield say("y = AllReduceSum.apply(x) on each rank", each(got, "y"),
              [x.sum(0)] * k, [
        ("every rank has its own x: nothing was added", x),
        ("this is the mean; the sum is wanted", [x.mean(0)] * k)])
    yield say("x afterwards", each(got, "x"), x, [
        ("dist.all_reduce writes into the tensor that it is given: clone first", True)])
    yield say(f"{back} x.grad on each rank", each(got, "x.grad"),
              [weights.sum(0)] * k, [
        ("no gradient comes back to x", [None] * k),
        ("no gradient comes back to x", 0 * weights),
        ("the gradient goes back as if y were x. But a rank's x is in every rank's y: "
         "what comes back is the sum over ranks", weights),
        ("this is the own gradient, times the number of ranks; but the ranks' "
         "gradients are different", k * weights),
        ("this is the mean over ranks; the sum is wanted", [weights.mean(0)] * k),
        ("this is the own gradient, divided by the number of ranks; the sum of all is "
         "wanted", weights / k),
        ("every rank has rank 0's gradient; the sum over ranks is wanted",
         [weights[0]] * k)])
    yield say(f"{back} the gradient that also goes to another tensor, t",
              each(got, "t.grad"), weights, [
        ("backward writes into the gradient that it is given, and others use that too: "
         "clone first", True)])


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
