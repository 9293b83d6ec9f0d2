"""Batch normalisation over ranks: what is drawn, and what would be right.

    draw, judge   two steps of training on ranks, then evaluation

The truth is torch's own nn.BatchNorm1d, in one process, on all ranks' rows.
"""

import torch
from torch import nn

from manual_dp.school.exercise import random_numbers, shorten
from manual_dp.school.ps6.run import layer
from manual_dp.school.ps6.shards import draw_sizes, each, rows, variance
from manual_dp.school.tools.plain import tensor
from manual_dp.school.tools.tell import about, unequal


def draw(random):
    """Draw a layer's numbers, two minibatches, and rows to evaluate."""
    for world_size in (2, 3, 4, 1):
        features = random.randint(2, 3)
        sizes = [draw_sizes(random, world_size) for _ in range(2)]
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


def judge(case, got):
    """Compare each step, then evaluation, with torch's layer on all rows."""
    norm = layer(case, nn.BatchNorm1d)
    for number, step in enumerate(case["steps"]):
        ranks = {"ranks": [rank["steps"][number] for rank in got["ranks"]]}
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
    return _affine(case, x, x.mean(0), variance(x))


def _judge_forward(case, xs, say, got, norm):
    x, k, m, eps = torch.cat(xs), len(xs), case["momentum"], case["eps"]
    mean, var = x.mean(0), variance(x)
    old_mean, old_var = norm.running_mean.clone(), norm.running_var.clone()
    y, bias = norm(x), tensor(case["bias"])

    def shards(values):
        return values.split([len(shard) for shard in xs])
    of_means, squares = sum(shard.mean(0) for shard in xs) / k, (x * x).mean(0)
    means, variances = each(got, "running_mean"), each(got, "running_var")
    centred = (x - mean) * tensor(case["weight"])
    yield say("y", each(got, "y"), shards(y), [
        ("every rank normalises with the statistics of its own rows",
         [_normalised(case, shard) for shard in xs]),
        ("this takes the mean of the ranks' means: a rank with few rows counts as much "
         "as one with many",
         shards(_affine(case, x, of_means, squares - of_means ** 2))),
        ("the sums are those of all ranks, the number of rows is not",
         [_affine(case, shard, x.sum(0) / len(shard), (x * x).sum(0) / len(shard)
                  - (x.sum(0) / len(shard)) ** 2) for shard in xs]),
        ("this takes the mean of the ranks' variances",
         shards(_affine(case, x, mean, sum(map(variance, xs)) / k))),
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


def _judge_backward(case, step, say, got):
    xs, factors = rows(case, step["x"]), rows(case, step["factors"])
    x, sizes = torch.cat(xs).requires_grad_(), [len(shard) for shard in xs]
    losses = [(part * f).sum()
              for part, f in zip(_normalised(case, x).split(sizes), factors)]
    own = [torch.autograd.grad(loss, x, retain_graph=True)[0].split(sizes)[rank]
           for rank, loss in enumerate(losses)]
    total, = torch.autograd.grad(sum(losses), x)
    mean, root = x.detach().mean(0), (variance(x.detach()) + case["eps"]).sqrt()
    slope = tensor(case["weight"]) / root
    weight = [((shard - mean) / root * f).sum(0) for shard, f in zip(xs, factors)]
    weights = each(got, "weight.grad")
    given = "the loss is the sum over ranks of (y * factors).sum();"
    yield say(f"{given} x.grad", each(got, "x.grad"), total.split(sizes), [
        ("mean and variance are taken for constants; but they depend on x. The sum "
         "over ranks must let gradients through", [f * slope for f in factors]),
        ("only the own rank's loss sends something back. In backward, too, the ranks' "
         "gradients must be added up", own)])
    yield say(f"{given} weight.grad, of the rank's own rows", weights, weight, [
        ("the ranks' gradients are added up or averaged here; that is DDP's work",
         not unequal(weights))])
    yield say(f"{given} bias.grad, of the rank's own rows", each(got, "bias.grad"),
              [f.sum(0) for f in factors])


def _judge_eval(case, got, k):
    test, mean, var = (tensor(case[name])
                       for name in ("test", "running_mean", "running_var"))
    say = about(f"eval mode, in a process without ranks; x = {shorten(case['test'])}, "
                f"running mean {shorten(case['running_mean'])}, "
                f"running variance {shorten(case['running_var'])}")
    on_ranks = about(f"{k} ranks")
    yield on_ranks("two steps of training; does a running statistic hang on a graph?",
                   each(got, "on a graph"), [False] * k, [
        ("update them under torch.no_grad(), or every step's graph stays in memory",
         True)])
    yield say("y", got["alone"], _affine(case, test, mean, var), [
        ("in eval mode only the running statistics count, and nobody is asked",
         isinstance(got["alone"], str)),
        ("these are the statistics of the rows themselves, not the running ones",
         _normalised(case, test))])
    yield say("the running statistics afterwards", got["kept"], [mean, var],
              [("eval mode changes nothing", True)])
    yield on_ranks("eval mode; how often does each communicate?", each(got, "calls"),
                   [0] * k, [
        ("the running statistics are the same on all ranks: nothing has to be sent",
         True)])
