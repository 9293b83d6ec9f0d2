"""Problem set 6, batch normalisation over ranks, and accumulation, alone and on ranks.

ddp_steps               steps of a model in DDP, with their messages
weights, averages       compare a step in parts: its weights, its messages
"""

import copy
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.school import linear
from course.school.checks import (
    about,
    close,
    exercise,
    flat,
    numbers,
    remember,
    shorten,
    unequal,
)
from course.school.draws import forms, rand, tensors
from course.school.ranks import Roll, calls_of_collectives, on_ranks

SECONDS = 20  # that all ranks have
BY_OWN_ROWS = (
    "the sum is divided by the rank's own rows, or so many for each rank: add up the "
    "counts of all ranks"
)
FOR_ALL = "a collective is for all ranks: call it also on a rank without rows"


@exercise("ps6/global_statistics", points=2, seconds=60, cases=[2, 3, 4, 1])
def global_statistics(random, global_statistics, *, k):
    """Ask each rank for the statistics of all rows; count what it sends."""
    features = random.randint(2, 3)
    shards = [rand(random, size, features) for size in _sizes(random, k)]
    sizes = [len(shard) for shard in shards]
    say = about(f"{k} ranks with {sizes} rows: {shorten(shards)}")
    [got] = _ask(global_statistics, "global_statistics", [(say, shards)])
    yield from _came(say, got, shards)
    yield from _statistics(say, got, shards)
    if k > 1:
        yield say(
            "how often does each communicate?",
            got["calls"],
            [1] * k,
            {"put sums, squares and count into one tensor, and sum that": True},
        )


# around which number rows lie, their dtype, and what rounding does to mean and variance
AROUND = [
    (0, torch.float64, 1e-9, 1e-9),
    (1e4, torch.float32, 1e-6, 1e-2),
    (1e10, torch.float64, 1e-12, 1e-2),
]


@exercise("ps6/two_round_statistics", points=2, seconds=60, cases=[2, 3, 4, 1])
def two_round_statistics(random, two_round_statistics, *, k):
    """Ask for the same of rows around 0, and around numbers with large squares."""
    features = random.randint(2, 3)
    drawn = [rand(random, size, features) for size in _sizes(random, k)]
    cases = []
    for number, dtype, *_ in AROUND:
        shards = [(number + rows).to(dtype) for rows in drawn]
        sizes = [len(shard) for shard in shards]
        say = about(
            f"{k} ranks with {sizes} rows in {dtype}, around {number:g}: "
            f"{shorten(shards, digits=11)}"
        )
        cases.append((say, shards))
    found = _ask(two_round_statistics, "two_round_statistics", cases)
    for (number, _, *rounding), (say, shards), got in zip(AROUND, cases, found):
        yield from _came(say, got, shards)
        yield from _statistics(say, got, shards, *rounding, lost=number > 0)
        if k > 1:
            yield say(
                "does each communicate once or twice?",
                [0 < calls < 3 for calls in got["calls"]],
                [True] * k,
                {"put sums and count into one tensor: that is the first round": True},
            )


def _ask(answer, name, cases):
    """Return, for each (say, shards) of cases, what ranks return and call, as lists."""

    def work():
        found = []
        with Roll() as roll:
            for say, shards in cases:
                x = shards[dist.get_rank()].clone()
                same = remember(x=x)
                both = roll.call(answer, x)
                calls = len(roll.seen)
                mean, var = [x, x] if roll.absent else tensors(both, 2, name)
                changed = list(same(say))
                form = forms([mean, var])
                found.append([mean, var, form, changed, calls, roll.absent])
        return found

    names = "means", "variances", "forms", "changed", "calls", "absent"
    ranks = on_ranks(work, len(cases[0][1]), SECONDS)
    return [dict(zip(names, zip(*case))) for case in zip(*ranks)]


def _came(say, got, shards):
    """Compare whether all came to each collective, what they left, and the form."""
    right = forms([shards[0].sum(0)] * 2)

    def same_shapes(found):
        return [one.split()[1:] for one in found] == [one.split()[1:] for one in right]

    yield say(
        "ranks that did not come to a collective",
        max(got["absent"]),
        0,
        {FOR_ALL: True},
    )
    for messages in got["changed"]:
        yield from messages
    yield say(
        "mean and var on each rank",
        got["forms"],
        [right] * len(shards),
        {
            "the dtype is another than that of x: torch.zeros and torch.tensor need "
            "dtype=x.dtype": all(map(same_shapes, got["forms"]))
        },
    )


def _statistics(say, got, shards, of_mean=1e-9, of_var=1e-9, lost=False):
    """Compare mean and variance on each rank.

    of_mean, of_var: how far rounding may take them. lost: are the squares so large that
    all digits of the variance are lost, if it is a difference of squares?
    """
    k, shards = len(shards), [shard.double() for shard in shards]
    x, of_ranks = torch.cat(shards), [shard.mean(0) for shard in shards]
    distances = [(shard - shard.mean(0)).square().sum(0) for shard in shards]
    sizes = [len(shard) for shard in shards]

    def by_own_rows(found, right):
        """Return what a division by each rank's own rows gives, or that by k times."""
        once = [right * len(x) / size for size in sizes]
        often = [part / k for part in once]
        return often if close(found, numbers(often)) else once

    nan = 0 in sizes and any(one != one for one in flat(numbers(got["means"])))
    yield say(
        "the mean on each rank",
        got["means"],
        [x.mean(0)] * k,
        {
            "every rank has the mean of its own rows": of_ranks,
            "a mean of means counts a row of a small rank more: add up sums and "
            "counts": [sum(of_ranks) / k] * k,
            BY_OWN_ROWS: by_own_rows(got["means"], x.mean(0)),
            "the mean of no rows is NaN, and so is what NaN is added to: add up sums "
            "and counts": nan,
        },
        of_mean,
    )
    yield say(
        "the variance on each rank",
        got["variances"],
        [x.var(0, False)] * k,
        {
            "this is the unbiased variance: divide by the rows, not by rows - 1": [
                x.var(0)
            ]
            * k,
            "these are distances from the mean of each rank's own rows: take those "
            "from the mean of all rows": [sum(distances) / len(x)] * k,
            BY_OWN_ROWS: by_own_rows(got["variances"], x.var(0, False)),
            "around 0 this was right, and here its digits are lost: square the rows' "
            "distances from the mean, neither rows nor mean themselves": lost,
        },
        of_var,
    )


@exercise("ps6/allreduce_sum", points=3, seconds=60, cases=[2, 3, 4, 1])
def allreduce_sum(random, AllReduceSum, *, k):
    """Sum over ranks, then go back; beside the sum the gradient has another way."""
    shape = random.choice([(), (2,), (3,), (2, 3)])
    x, t, weights = (rand(random, k, *shape) for _ in range(3))

    def work():
        rank = dist.get_rank()
        own_x, own_t = (part[rank].clone().requires_grad_() for part in (x, t))
        beside = own_t * 1  # made before the sum, so backward comes here after it
        (y,) = tensors([AllReduceSum.apply(own_x)], 1, "AllReduceSum.apply")
        ((y + beside) * weights[rank]).sum().backward()
        return y, own_x, own_x.grad, own_t.grad

    y, after, x_grad, t_grad = zip(*on_ranks(work, k, SECONDS))
    say = about(f"{k} ranks, x = {shorten(x, 150)}")
    back = f"the gradients that arrive are {shorten(weights, 150)};"
    yield say(
        "y = AllReduceSum.apply(x) on each rank",
        y,
        [x.sum(0)] * k,
        {"every rank has its own x: nothing was added": x},
    )
    yield say(
        "x afterwards",
        after,
        x,
        {"dist.all_reduce writes into the tensor that it is given: clone first": True},
    )
    yield say(
        f"{back} x.grad on each rank",
        x_grad,
        [weights.sum(0)] * k,
        {
            "the gradient goes back as if y were x. But a rank's x is in every "
            "rank's y: what comes back is the sum over ranks": weights,
            "this is the mean of what arrives: y is a sum, so x counts whole in every "
            "rank's loss": [weights.mean(0)] * k,
            "this is the rank's own gradient, k times: the other ranks' losses have "
            "gradients of their own": weights * k,
            "y is a sum, so its derivative by x is 1: x is not in it": [
                (weights * x).sum(0)
            ]
            * k,
        },
    )
    yield say(
        f"{back} the gradient that also goes to another tensor, t",
        t_grad,
        weights,
        {
            "backward writes into the gradient that it is given, and others use "
            "that too: clone first": True
        },
    )


def supply():
    """Return the sum that `SyncBatchNorm` is judged with: torch's own."""
    from torch.distributed.nn.functional import all_reduce

    return {"AllReduceSum": SimpleNamespace(apply=all_reduce)}


@exercise(
    "ps6/sync_batch_norm", points=5, seconds=60, supply=supply, cases=[2, 3, 4, 1]
)
def sync_batch_norm(random, SyncBatchNorm, *, k):
    """Train for two steps on ranks, then evaluate: there, and where no ranks are."""
    features = random.randint(2, 3)
    sizes_of_steps = _sizes(random, k), _sizes(random, k)
    steps = []  # for each (xs, factors): what a rank is given, and weighs its loss with
    for sizes in sizes_of_steps:
        xs = [rand(random, size, features) for size in sizes]
        steps.append((xs, [rand(random, size, features) for size in sizes]))
    test = rand(random, 3, features)
    options = {"eps": random.uniform(0.01, 0.1), "momentum": random.uniform(0.15, 0.4)}
    truth = nn.BatchNorm1d(features, **options).double()
    for part in list(truth.state_dict().values())[:4]:  # the fifth is a count
        part.copy_(rand(random, features).abs() + 0.5)
    begin = copy.deepcopy(truth)

    def own():
        norm = SyncBatchNorm(len(begin.weight), **options).double()
        norm.load_state_dict(begin.state_dict())
        return norm

    def work():
        norm, results, absent = own(), [], 0

        def take(x, factors):
            norm.zero_grad()
            (y,) = tensors([norm(x.requires_grad_())], 1, "SyncBatchNorm")
            (y * factors).sum().backward()
            return y

        with Roll() as roll:
            for step in steps:
                x, factors = (part[dist.get_rank()] for part in step)
                y = roll.call(take, x, factors)
                absent = max(absent, roll.absent)
                statistics = norm.running_mean, norm.running_var
                grads = x.grad, norm.weight.grad, norm.bias.grad
                results.append(numbers([y, *statistics, *grads]))
        return results, any(part.requires_grad for part in norm.buffers()), absent

    results, on_a_graph, absent = zip(*on_ranks(work, k, SECONDS))
    yield about(f"{k} ranks with {sizes_of_steps} rows in the two steps")(
        "ranks that did not come to a collective",
        max(absent),
        0,
        {FOR_ALL: True},
    )
    for number, (xs, factors) in enumerate(steps):
        got = list(zip(*(of_rank[number] for of_rank in results)))
        say = about(
            f"{k} ranks, step {number + 1}, eps {truth.eps:.3f}, momentum "
            f"{truth.momentum:.3f}, x = {shorten(xs, 200)}"
        )
        yield from _forward(say, truth, xs, *got[:3])
        yield from _backward(say, truth, xs, factors, *got[3:])
    yield about(f"{k} ranks")(
        "do running statistics hang on a graph?",
        on_a_graph,
        [False] * k,
        {
            "update them under torch.no_grad(), or every step's graph stays in "
            "memory": True
        },
    )
    yield _eval(own().eval(), begin.eval(), test)


def _forward(say, norm, xs, y, *statistics):
    """Compare y and the running statistics of a step in which the ranks hold xs.

    norm: torch's own, before the step, which it takes here on all rows.
    """
    k, m, sizes = len(xs), norm.momentum, [len(part) for part in xs]
    x = torch.cat(xs)
    mean, biased, unbiased = x.mean(0), x.var(0, unbiased=False), x.var(0)
    old_mean, old_var = norm.running_mean.clone(), norm.running_var.clone()
    right = norm(x)
    new_mean, new_var = norm.running_mean, norm.running_var

    of_own_rows = []
    for part in xs:
        own = part.mean(0), part.var(0, unbiased=False)
        of_own_rows.append(_affine(norm, part, *own))
    outside = (x - mean) / (biased.sqrt() + norm.eps) * norm.weight + norm.bias
    of_unbiased = _affine(norm, x, mean, unbiased).split(sizes)
    yield say(
        "y",
        y,
        right.split(sizes),
        {
            "every rank normalises with the statistics of its own rows": of_own_rows,
            "y takes the biased variance, divided by the rows, not by rows - "
            "1": of_unbiased,
            "eps belongs under the root": outside.split(sizes),
        },
    )

    swapped_mean = m * old_mean + (1 - m) * mean
    swapped_var = m * old_var + (1 - m) * unbiased
    var_of_biased = (1 - m) * old_var + m * biased
    by_own_rows = []  # n is each rank's own count: none of one row
    for n in sizes:
        by_own_rows.append((1 - m) * old_var + m * biased * n / max(1, n - 1))
    yield say(
        "running_mean, then running_var, on each rank",
        statistics,
        [[new_mean] * k, [new_var] * k],
        {
            "momentum is the weight of what is new: (1 - momentum) * old + momentum * "
            "new": [[swapped_mean] * k, [swapped_var] * k],
            "running_var takes the unbiased variance: n / (n - 1) times the biased "
            "one": [[new_mean] * k, [var_of_biased] * k],
            "n / (n - 1) has the rows of this rank: n counts those of all": [
                [new_mean] * k,
                by_own_rows,
            ],
        },
    )


def _backward(say, norm, xs, factors, x_grad, weight_grad, bias_grad):
    """Compare each rank's gradients of the sum over ranks of (y * factors).sum()."""
    sizes = [len(part) for part in xs]
    x = torch.cat(xs).requires_grad_()
    mean, var = x.mean(0), x.var(0, unbiased=False)
    y = _affine(norm, x, mean, var)
    of_x, of_weight, of_bias = [], [], []  # the gradients of each rank's own loss
    for part, factor in zip(y.split(sizes), factors):
        loss = (part * factor).sum()
        grads = torch.autograd.grad(
            loss, [x, norm.weight, norm.bias], retain_graph=True
        )
        for kept, grad in zip((of_x, of_weight, of_bias), grads):
            kept.append(grad)
    deviation = (var + norm.eps).sqrt()
    constants = [factor * norm.weight / deviation for factor in factors]
    own_loss = [grad.split(sizes)[rank] for rank, grad in enumerate(of_x)]
    given = "the loss is the sum over ranks of (y * factors).sum();"
    yield say(
        f"{given} x.grad",
        x_grad,
        sum(of_x).split(sizes),
        {
            "mean and variance are taken for constants; but they depend on x. The sum "
            "over ranks must let gradients through": constants,
            "only the own rank's loss sends something back. In backward, too, the "
            "ranks' gradients must be added up": own_loss,
        },
    )
    yield say(
        f"{given} weight.grad and bias.grad, of the rank's own rows",
        [weight_grad, bias_grad],
        [of_weight, of_bias],
        {"adding up the ranks' gradients is DDP's work": True},
    )


def _eval(norm, truth, test):
    try:
        y = norm(test.clone())
    except (RuntimeError, ValueError) as error:  # no ranks to talk to
        y = f"{type(error).__name__}: {error}"
    return about("eval mode, in a process without ranks")(
        "y, and the running statistics afterwards",
        [y, norm.running_mean, norm.running_var],
        [truth(test), truth.running_mean, truth.running_var],
        {
            "in eval mode only the running statistics count: nobody is asked, and "
            "nothing changes": True
        },
    )


def _affine(norm, x, mean, var):
    """Normalise x with these statistics, and a layer's weight and bias."""
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


def _sizes(random, k):
    """Draw how many rows each rank has, no two the same."""
    small = {3: (1,), 4: (0, 1)}.get(k, ())  # sizes that must occur
    return random.sample([*small, *random.sample(range(2, 7), k - len(small))], k)


@exercise("ps6/accumulate", points=2)
def accumulate(random, accumulate):
    """Take two steps; see what goes through the model at once."""
    for count, kind in zip((2, 3, 4, 1), linear.KINDS):
        lr, (weight, stale) = random.uniform(0.1, 1), (rand(random, 4, 3) for _ in "ab")
        steps = []
        for _ in range(2):
            sizes = random.sample(range(1, 7), count)
            steps.append([linear.draw_batch(random, size) for size in sizes])
        model = linear.layer(weight, grad=stale)
        rule = linear.optimizer(kind, model.parameters(), lr)
        forwards = linear.Forwards(model)
        after = linear.descend([weight], steps, lr, kind, linear.whole)
        for number, (microbatches, (right,)) in enumerate(zip(steps, after)):
            copies, factors = linear.cloned(microbatches), linear.whole(microbatches)
            with forwards:
                mean_loss = accumulate(model, F.cross_entropy, copies, rule)
            sizes = [len(y) for _, y in microbatches]
            say = about(
                f"microbatches of {sizes} rows, {kind}, lr {lr:.3f}, step {number + 1}"
            )
            got = [{"weight": model.weight, **forwards.seen}]
            yield weights(say, [microbatches], lr, weight, got, right, kind == "SGD")
            last, share = microbatches[-1:], factors[-1:]
            yield say(
                "the mean loss of all rows, before the step",
                mean_loss,
                linear.loss([weight], microbatches, factors),
                {
                    "this is the loss of the last microbatch alone": linear.loss(
                        [weight], last
                    ),
                    "only the last microbatch's share is there: add the shares "
                    "up": linear.loss([weight], last, share),
                    "this is a mean of means: a row of a small microbatch counts "
                    "more": linear.loss([weight], microbatches),
                },
                1e-6,
            )
            yield from linear.one_by_one(say, max(sizes), got)
            weight = right


@exercise(
    "ps6/accumulate_ddp",
    points=3,
    seconds=60,
    cases=list(zip((2, 3, 4, 1), linear.KINDS)),
)
def accumulate_ddp(random, accumulate_ddp, *, k, kind):
    """Take two steps on ranks with torch's DDP; count averages."""
    lr, (weight, stale) = random.uniform(0.1, 1), (rand(random, 4, 3) for _ in "ab")
    steps = []  # for each the microbatches of every rank
    for count in (random.choice([2, 3]), 1 if k % 2 else 2):
        steps.append([linear.draw_batches(random, count, 1, 6) for _ in range(k)])

    def work():
        def take(model, *others):
            accumulate_ddp(model, F.cross_entropy, *others)

        model = linear.layer(weight, grad=stale)
        rule = linear.optimizer(kind, model.parameters(), lr)
        return ddp_steps(model, rule, steps, take)

    results = zip(*on_ranks(work, k, SECONDS))
    after = linear.descend(
        [weight], [sum(step, []) for step in steps], lr, kind, linear.whole
    )
    for number, (ranks, got, (right,)) in enumerate(zip(steps, results, after)):
        sizes = [[len(y) for _, y in batches] for batches in ranks]
        say = about(
            f"{k} ranks, microbatches of {sizes} rows, {kind}, lr "
            f"{lr:.3f}, step {number + 1}"
        )
        yield weights(say, ranks, lr, weight, got, right, kind == "SGD")
        yield from averages(say, len(sizes[0]), got)
        yield from linear.one_by_one(say, max(map(max, sizes)), got)
        weight = right


def ddp_steps(module, rule, steps, step):
    """Take steps on this rank; return what there was to see of each, as dicts.

    steps: for each step the microbatches of every rank. step(model, microbatches, rows,
    rule) takes one; `model` is torch's DDP around the module, `rows` are those of all
    ranks, `rule` is the module's optimizer.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    averaged, done, model = [], [], DistributedDataParallel(module)
    forwards = linear.Forwards(model)

    def note(state, bucket):
        averaged.append(bucket.index())
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, note)
    for ranks in steps:
        with calls_of_collectives() as calls, forwards:
            step(
                model,
                linear.cloned(ranks[dist.get_rank()]),
                sum(len(y) for batches in ranks for _, y in batches),
                rule,
            )
        done.append(
            {
                "weight": numbers(module.weight),
                "averaged": len(averaged),
                "others": len(calls) - len(averaged),
                **forwards.seen,
            }
        )
        averaged.clear()
    return done


def weights(say, ranks, lr, weight, got, right, plain=True):
    """Compare every rank's weight after a step in parts.

    ranks: the microbatches of each. weight: before the step. got: for each rank, what
    ddp_steps has seen. plain: is it one of SGD?
    """
    what, wanted = "the weights on each rank", [right] * len(ranks)
    got = [one["weight"] for one in got]
    if not plain:
        return say(what, got, wanted, linear.STEPPED)
    k, n, batches = len(ranks), len(ranks[0]), sum(ranks, [])
    [means] = linear.gradients([weight], batches)
    of_means = [weight - lr * means] * k
    small, of_ranks = False, False
    if k > 1:
        small = [weight + (right - weight) / k] * k
        [own] = linear.gradients(
            [weight], [tuple(map(torch.cat, zip(*part))) for part in ranks]
        )
        of_ranks = [weight - lr * own] * k
    return say(
        what,
        got,
        wanted,
        {
            "replicas differ: one stepped with a gradient that was not averaged. Step "
            "after the last backward, whose forward stands outside of "
            "no_sync": unequal(got),
            f"the step is {k} times too small: DDP takes the mean over ranks, so a sum "
            "needs the factor world_size": small,
            "this is a mean of means: a row of a small microbatch counts "
            "more": of_means,
            "this is the mean of the ranks' means: a row counts more where there are "
            "few": of_ranks,
            "every microbatch goes into one step: gradients are cleared once, before "
            "the first, and the optimizer steps once, after the last": n > 1,
        },
    )


def averages(say, n, got):
    """Compare the ranks' messages in a step of n microbatches: `got`, of ddp_steps."""
    averaged = [one["averaged"] for one in got]
    yield say(
        "how often does DDP average gradients?",
        averaged,
        [1] * len(got),
        {
            "no_sync is for all microbatches but the last; and the forward must stand "
            "inside it: the forward decides": averaged[0] == n,
            "leave averaging to DDP, in the last backward": True,
        },
    )
    yield say(
        "messages beside DDP's",
        [one["others"] for one in got],
        [0] * len(got),
        {
            "when the last backward returns, DDP has averaged: nothing is left to "
            "do": True
        },
    )
