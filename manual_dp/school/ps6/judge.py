"""Problem set 6, batch normalisation and accumulation: what is drawn, what is right.

Here: the exercises; statistics, sums and batch normalisation over ranks. Accumulation
is in accumulate.py.
"""

from functools import partial

import torch
from torch import nn

from manual_dp.school.exercise import Exercise, about, each, shorten, unequal
from manual_dp.school.ps6 import accumulate
from manual_dp.school.ps6.run import layer, rows
from manual_dp.school.tools.plain import random_numbers, tensor


def _draw_statistics(random):
    for world_size in (2, 3, 4, 1):
        features = random.randint(2, 3)
        yield {"features": features,
               "shards": [random_numbers(random, size, features)
                          for size in _draw_sizes(random, world_size)]}


def _judge_statistics(case, got):
    shards = rows(case, case["shards"])
    sizes, k, x = [len(shard) for shard in shards], len(shards), torch.cat(shards)
    mean, var = x.mean(0), _variance(x)
    means, own = [shard.mean(0) for shard in shards], list(map(_variance, shards))
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


def _draw_norm(random):
    for world_size in (2, 3, 4, 1):
        features = random.randint(2, 3)
        sizes = [_draw_sizes(random, world_size) for _ in range(2)]
        yield {"features": features, "eps": random.uniform(0.01, 0.1),
               "momentum": random.uniform(0.15, 0.4),
               "weight": [random.uniform(0.5, 2) for _ in range(features)],
               "bias": random_numbers(random, features),
               "steps": [{name: [random_numbers(random, size, features)
                                 for size in step] for name in ("x", "factors")}
                         for step in sizes],
               "test": random_numbers(random, 3, features),
               "running_mean": random_numbers(random, features),
               "running_var": [random.uniform(0.5, 2) for _ in range(features)]}


def _judge_norm(case, got):
    norm = layer(case, nn.BatchNorm1d)  # torch's own, on all ranks' rows
    for number, step in enumerate(case["steps"]):
        ranks = each(each(got["ranks"], "steps"), number)
        say = about(f"{len(step['x'])} ranks, step {number + 1}, "
                    f"eps {case['eps']:.3f}, momentum {case['momentum']:.3f}, "
                    f"x = {shorten(step['x'], 200)}")
        yield from _judge_forward(case, rows(case, step["x"]), say, ranks, norm)
        yield from _judge_backward(case, step, say, ranks)
    yield from _judge_eval(case, got, len(case["steps"][0]["x"]))


def _affine(case, x, mean, var):
    root = (var + case["eps"]).sqrt()
    return (x - mean) / root * tensor(case["weight"]) + tensor(case["bias"])


def _normalised(case, x):
    return _affine(case, x, x.mean(0), _variance(x))


def _judge_forward(case, xs, say, ranks, norm):
    x, k, m, eps = torch.cat(xs), len(xs), case["momentum"], case["eps"]
    mean, var = x.mean(0), _variance(x)
    old_mean, old_var = norm.running_mean.clone(), norm.running_var.clone()
    y, bias = norm(x), tensor(case["bias"])

    def shards(values):
        return values.split([len(shard) for shard in xs])
    of_means, squares = sum(shard.mean(0) for shard in xs) / k, (x * x).mean(0)
    means, variances = each(ranks, "running_mean"), each(ranks, "running_var")
    centred = (x - mean) * tensor(case["weight"])
    yield say("y", each(ranks, "y"), shards(y), [
        ("every rank normalises with the statistics of its own rows",
         [_normalised(case, shard) for shard in xs]),
        ("this takes the mean of the ranks' means: a rank with few rows counts as much "
         "as one with many",
         shards(_affine(case, x, of_means, squares - of_means ** 2))),
        ("the sums are those of all ranks, the number of rows is not",
         [_affine(case, shard, x.sum(0) / len(shard), (x * x).sum(0) / len(shard)
                  - (x.sum(0) / len(shard)) ** 2) for shard in xs]),
        ("this takes the mean of the ranks' variances",
         shards(_affine(case, x, mean, sum(map(_variance, xs)) / k))),
        ("y takes the biased variance, divided by the rows, not by rows - 1",
         shards(_affine(case, x, mean, x.var(0)))),
        ("the module's weight and bias are missing",
         shards((x - mean) / (var + eps).sqrt())),
        ("eps stands under the root: sqrt(variance + eps)",
         shards(centred / (var.sqrt() + eps) + bias)),
        ("the root of the variance is missing", shards(centred / (var + eps) + bias)),
        ("eps is the module's own, self.eps",
         shards(centred / (var + 1e-5).sqrt() + bias)),
        ("running statistics are for eval mode",
         shards(_affine(case, x, norm.running_mean, norm.running_var)))])
    yield say("running_mean", means, [norm.running_mean] * k, [
        ("momentum is the weight of what is new: (1 - momentum) * old + momentum * new",
         [m * old_mean + (1 - m) * mean] * k),
        ("momentum is the module's own, self.momentum",
         [0.9 * old_mean + 0.1 * mean] * k),
        ("the running mean has not changed", [old_mean] * k),
        ("the ranks' running means differ: each took the mean of its own rows",
         unequal(means))])
    yield say("running_var", variances, [norm.running_var] * k, [
        ("running_var takes the unbiased variance: n / (n - 1) times the biased one",
         [(1 - m) * old_var + m * var] * k),
        ("the running variance has not changed", [old_var] * k),
        ("the ranks' running variances differ: n is the number of all ranks' rows",
         unequal(variances))])


def _judge_backward(case, step, say, ranks):
    xs, factors = rows(case, step["x"]), rows(case, step["factors"])
    x, sizes = torch.cat(xs).requires_grad_(), [len(shard) for shard in xs]
    losses = [(part * f).sum()
              for part, f in zip(_normalised(case, x).split(sizes), factors)]
    own = [torch.autograd.grad(loss, x, retain_graph=True)[0].split(sizes)[rank]
           for rank, loss in enumerate(losses)]
    total, = torch.autograd.grad(sum(losses), x)
    mean, root = x.detach().mean(0), (_variance(x.detach()) + case["eps"]).sqrt()
    slope = tensor(case["weight"]) / root
    weight = [((shard - mean) / root * f).sum(0) for shard, f in zip(xs, factors)]
    weights = each(ranks, "weight.grad")
    given = "the loss is the sum over ranks of (y * factors).sum();"
    yield say(f"{given} x.grad", each(ranks, "x.grad"), total.split(sizes), [
        ("mean and variance are taken for constants; but they depend on x. The sum "
         "over ranks must let gradients through", [f * slope for f in factors]),
        ("only the own rank's loss sends something back. In backward, too, the ranks' "
         "gradients must be added up", own)])
    yield say(f"{given} weight.grad, of the rank's own rows", weights, weight, [
        ("the ranks' gradients are added up or averaged here; that is DDP's work",
         not unequal(weights))])
    yield say(f"{given} bias.grad, of the rank's own rows", each(ranks, "bias.grad"),
              [f.sum(0) for f in factors])


def _judge_eval(case, got, k):
    ranks, (test, mean, var) = got["ranks"], (
        tensor(case[name]) for name in ("test", "running_mean", "running_var"))
    say = about(f"eval mode, in a process without ranks; x = {shorten(case['test'])}, "
                f"running mean {shorten(case['running_mean'])}, "
                f"running variance {shorten(case['running_var'])}")
    on_ranks = about(f"{k} ranks")
    yield on_ranks("two steps of training; does a running statistic hang on a graph?",
                   each(ranks, "on a graph"), [False] * k, [
        ("update them under torch.no_grad(), or every step's graph stays in memory",
         True)])
    yield say("y", got["alone"], _affine(case, test, mean, var), [
        ("in eval mode only the running statistics count, and nobody is asked",
         isinstance(got["alone"], str)),
        ("these are the statistics of the rows themselves, not the running ones",
         _normalised(case, test))])
    yield say("the running statistics afterwards", got["kept"], [mean, var],
              [("eval mode changes nothing", True)])
    yield on_ranks("eval mode; how often does each communicate?", each(ranks, "calls"),
                   [0] * k, [
        ("the running statistics are the same on all ranks: nothing has to be sent",
         True)])


def _draw_sizes(random, world_size):
    """Draw how many rows each rank has, no two the same."""
    small = {3: (1,), 4: (0, 1)}.get(world_size, ())  # sizes that must occur
    sizes = [*small, *random.sample(range(2, 7), world_size - len(small))]
    return random.sample(sizes, world_size)


def _variance(x):
    """Return the mean squared distance from the mean; NaN where there are no rows."""
    return ((x - x.mean(0)) ** 2).mean(0)


EXERCISES = [
    Exercise("ps6/global_statistics", 3, _draw_statistics, _judge_statistics, 20),
    Exercise("ps6/allreduce_sum", 3, _draw_sum, _judge_sum, 20,
             answers=("AllReduceSum",)),
    Exercise("ps6/sync_batch_norm", 5, _draw_norm, _judge_norm, 20,
             answers=("SyncBatchNorm",),
             cells=("sync_batch_norm",), parts=("global_statistics", "AllReduceSum"),
             beside=("global_statistics", "allreduce_sum")),
    Exercise("ps6/accumulate", 3, accumulate.draw,
             partial(accumulate.judge, accumulate.judge_step)),
    Exercise("ps6/accumulate_ddp", 3, accumulate.draw_ranks,
             partial(accumulate.judge, accumulate.judge_one_by_one), 20),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
