"""Batch normalisation over ranks: what is drawn, and what would be right.

    draw, judge   two steps of training on ranks, then evaluation

The truth is torch's own nn.BatchNorm1d, in one process, on all ranks' rows.
"""

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.school.exercise import differ, random_numbers, shorten
from manual_dp.school.ps6.shards import draw_sizes, each, lists, on_all, rows, variance


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
    norm = nn.BatchNorm1d(case["features"], eps=case["eps"],
                          momentum=case["momentum"]).double()
    with torch.no_grad():
        norm.weight.copy_(rows(case["weight"]))
        norm.bias.copy_(rows(case["bias"]))
    for number, step in enumerate(case["steps"]):
        ranks = {"ranks": [rank["steps"][number] for rank in got["ranks"]]}
        who = (f"{len(step['x'])} ranks, step {number + 1}, eps {case['eps']:.3f}, "
               f"momentum {case['momentum']:.3f}, x = {shorten(step['x'], 200)}")
        problem = (_judge_forward(case, step, who, ranks, norm)
                   or _judge_backward(case, step, who, ranks))
        if problem:
            return problem
    return _judge_eval(case, got, len(case["steps"][0]["x"]))


def _split(case, step, name):
    return [rows(shard, case["features"]) for shard in step[name]]


def _affine(case, x, mean, var):
    root = (var + case["eps"]).sqrt()
    return (x - mean) / root * rows(case["weight"]) + rows(case["bias"])


def _normalised(case, x):
    return _affine(case, x, x.mean(0), variance(x))


def _judge_forward(case, step, who, got, norm):
    xs, m = _split(case, step, "x"), case["momentum"]
    x, k, sizes = torch.cat(xs), len(xs), [len(shard) for shard in xs]
    mean, var = x.mean(0), x.var(0, unbiased=False)
    old_mean, old_var = norm.running_mean.clone(), norm.running_var.clone()
    y, bias = norm(x), rows(case["bias"])

    def shards(values):
        return lists(values.split(sizes))
    of_means, squares = sum(shard.mean(0) for shard in xs) / k, (x * x).mean(0)
    means, variances = each(got, "running_mean"), each(got, "running_var")
    centred = (x - mean) * rows(case["weight"])
    return (differ(f"{who}; y", each(got, "y"), shards(y), [
        ("every rank normalises with the statistics of its own rows",
         lists([_normalised(case, shard) for shard in xs])),
        ("this takes the mean of the ranks' means: a rank with few rows counts as much "
         "as one with many",
         shards(_affine(case, x, of_means, squares - of_means ** 2))),
        ("the sums are those of all ranks, the number of rows is not",
         lists([_affine(case, shard, x.sum(0) / len(shard), (x * x).sum(0) / len(shard)
                        - (x.sum(0) / len(shard)) ** 2) for shard in xs])),
        ("this takes the mean of the ranks' variances",
         shards(_affine(case, x, mean, sum(map(variance, xs)) / k))),
        ("y takes the biased variance, divided by the rows, not by rows - 1",
         shards(_affine(case, x, mean, x.var(0)))),
        ("the module's weight and bias are missing",
         shards((x - mean) / (var + case["eps"]).sqrt())),
        ("eps stands under the root: sqrt(variance + eps)",
         shards(centred / (var.sqrt() + case["eps"]) + bias)),
        ("the root of the variance is missing",
         shards(centred / (var + case["eps"]) + bias)),
        ("eps is the module's own, self.eps",
         shards(centred / (var + 1e-5).sqrt() + bias)),
        ("running statistics are for eval mode",
         shards(_affine(case, x, norm.running_mean, norm.running_var)))])
        or differ(f"{who}; running_mean", means, on_all(k, norm.running_mean), [
            ("momentum is the weight of what is new: (1 - momentum) * old + "
             "momentum * new", on_all(k, m * old_mean + (1 - m) * mean)),
            ("momentum is the module's own, self.momentum",
             on_all(k, 0.9 * old_mean + 0.1 * mean)),
            ("the running mean has not changed", on_all(k, old_mean)),
            ("the ranks' running means differ: each took the mean of its own rows",
             any(rank != means[0] for rank in means))])
        or differ(f"{who}; running_var", variances, on_all(k, norm.running_var), [
            ("running_var takes the unbiased variance: n / (n - 1) times the biased "
             "one", on_all(k, (1 - m) * old_var + m * var)),
            ("the running variance has not changed", on_all(k, old_var)),
            ("the ranks' running variances differ: n is the number of all ranks' rows",
             any(rank != variances[0] for rank in variances))]))


def _judge_backward(case, step, who, got):
    xs, factors = _split(case, step, "x"), _split(case, step, "factors")
    x, sizes = torch.cat(xs).requires_grad_(), [len(shard) for shard in xs]
    y = F.batch_norm(x, None, None, rows(case["weight"]), rows(case["bias"]),
                     training=True, eps=case["eps"])
    losses = [(part * f).sum() for part, f in zip(y.split(sizes), factors)]
    own = [torch.autograd.grad(loss, x, retain_graph=True)[0].split(sizes)[rank]
           for rank, loss in enumerate(losses)]
    total = torch.autograd.grad(sum(losses), x)[0].split(sizes)
    x = x.detach()
    mean, root = x.mean(0), (x.var(0, unbiased=False) + case["eps"]).sqrt()
    slope = rows(case["weight"]) / root
    weight = [((shard - mean) / root * f).sum(0) for shard, f in zip(xs, factors)]
    bias = [f.sum(0) for f in factors]
    who = f"{who}; the loss is the sum over ranks of (y * factors).sum()"
    alone = "of the rank's own rows"
    return (differ(f"{who}; x.grad", each(got, "x.grad"), lists(total), [
        ("mean and variance are taken for constants; but they depend on x. The sum "
         "over ranks must let gradients through", lists([f * slope for f in factors])),
        ("only the own rank's loss sends something back. In backward, too, the ranks' "
         "gradients must be added up", lists(own))])
        or differ(f"{who}; weight.grad, {alone}", each(got, "weight.grad"),
                  lists(weight), [
            ("the ranks' gradients are added up or averaged here; that is DDP's work",
             all(rank == got["ranks"][0]["weight.grad"]
                 for rank in each(got, "weight.grad")))])
        or differ(f"{who}; bias.grad, {alone}", each(got, "bias.grad"), lists(bias)))


def _judge_eval(case, got, k):
    test, mean, var = (rows(case[name])
                       for name in ("test", "running_mean", "running_var"))
    who = (f"eval mode, in a process without ranks; x = {shorten(case['test'])}, "
           f"running mean {shorten(case['running_mean'])}, "
           f"running variance {shorten(case['running_var'])}")
    return (differ("two steps of training; does a running statistic hang on a graph?",
                   each(got, "on a graph"), [False] * k, [
        ("update them under torch.no_grad(), or every step's graph stays in memory",
         True)])
        or differ(f"{who}; y", got["alone"], _affine(case, test, mean, var).tolist(), [
            ("in eval mode only the running statistics count, and nobody is asked",
             isinstance(got["alone"], str)),
            ("these are the statistics of the rows themselves, not the running ones",
             _normalised(case, test).tolist())])
        or differ(f"{who}; the running statistics afterwards", got["kept"],
                  [mean.tolist(), var.tolist()], [("eval mode changes nothing", True)])
        or differ(f"{k} ranks, eval mode; how often does each communicate?",
                  each(got, "calls"), [0] * k, [
            ("the running statistics are the same on all ranks: nothing has to be sent",
             True)]))
