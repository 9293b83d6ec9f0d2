"""Problem set 6, batch normalisation over ranks, and accumulation, alone and on ranks.

    ddp_steps, step_of_ranks    steps of a model in DDP: take them, compare one

The truth of batch normalisation is torch's own, on the rows of all ranks; that of
accumulation is a step with the gradient of the mean loss of all rows at once.
"""

import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.school.checks import exercise
from course.school.compare import about, numbers, shorten, unequal
from course.school.draws import rand, tensors
from course.school.linear import (
    KINDS,
    STEPPED,
    descend,
    draw_batch,
    gradients,
    loss,
    optimizer,
)
from course.school.ranks import on_ranks, watched

WORDS = {"words": 4}  # points that a person gives, by grade id
SECONDS = 20  # that all ranks have


@exercise("ps6/global_statistics", points=3, seconds=60)
def global_statistics(random, global_statistics):
    """Ask each rank for the statistics of all rows; count what it sends."""
    for k in 2, 3, 4, 1:
        features = random.randint(2, 3)
        shards = [rand(random, size, features) for size in _sizes(random, k)]

        def work(shards=shards):
            with watched() as calls:
                mean, var = tensors(global_statistics(shards[dist.get_rank()]), 2,
                                    "global_statistics")
            return mean, var, len(calls)
        means, variances, calls = zip(*on_ranks(work, k, SECONDS))
        sizes, x = [len(shard) for shard in shards], torch.cat(shards)
        mean, var, own = x.mean(0), _variance(x), list(map(_variance, shards))
        of_ranks = [shard.mean(0) for shard in shards]
        pooled = sum(size * v for size, v in zip(sizes, own) if size) / len(x)
        say = about(f"{k} ranks with {sizes} rows: {shorten(shards)}")
        yield say("the mean on each rank", means, [mean] * k, {
            "every rank has the mean of its own rows": of_ranks,
            "this is the mean of the ranks' means: a rank with few rows counts as much "
            "as one with many. Add up sums and counts": [sum(of_ranks) / k] * k,
            "this is the sum: divide by the rows of all ranks": [x.sum(0)] * k,
            "the sum is that of all ranks, the count is not":
                [x.sum(0) / size for size in sizes],
            "the sum was divided by the number of ranks, not of rows":
                [x.sum(0) / k] * k})
        yield say("the variance on each rank", variances, [var] * k, {
            "every rank has the variance of its own rows": own,
            "this is the unbiased variance: divide by the rows, not by rows - 1":
                [x.var(0)] * k,
            "this is the mean of the ranks' variances: it leaves out how far the "
            "ranks' means are apart": [sum(own) / k] * k,
            "every rank took squares around its own mean: this leaves out how far the "
            "ranks' means are apart": [pooled] * k,
            "this is the mean of the squares: the square of the mean must come off":
                [(x * x).mean(0)] * k,
            "this is the standard deviation": [var.sqrt()] * k})
        if k > 1:
            yield say("how often does each communicate?", calls, [1] * k, {
                "put sums, squares and count into one tensor, and sum that": True})


@exercise("ps6/allreduce_sum", points=3, seconds=60)
def allreduce_sum(random, AllReduceSum):
    """Sum over ranks, then go back; beside the sum the gradient has another way."""
    for k in 2, 3, 4, 1:
        shape = random.choice([(), (2,), (3,), (2, 3)])
        x, t, weights = (rand(random, k, *shape) for _ in range(3))

        def work(parts=(x, t, weights)):
            x, t, weights = (part[dist.get_rank()].clone() for part in parts)
            x.requires_grad_()
            t.requires_grad_()
            beside = t * 1  # made before the sum, so backward comes here after it
            y, = tensors([AllReduceSum.apply(x)], 1, "AllReduceSum.apply")
            ((y + beside) * weights).sum().backward()
            return y, x, x.grad, t.grad
        y, after, x_grad, t_grad = zip(*on_ranks(work, k, SECONDS))
        say = about(f"{k} ranks, x = {shorten(x, 150)}")
        back = f"the gradients that arrive are {shorten(weights, 150)};"
        yield say("y = AllReduceSum.apply(x) on each rank", y, [x.sum(0)] * k, {
            "every rank has its own x: nothing was added": x,
            "this is the mean; the sum is wanted": [x.mean(0)] * k})
        yield say("x afterwards", after, x, {
            "dist.all_reduce writes into the tensor that it is given: clone first":
                True})
        yield say(f"{back} x.grad on each rank", x_grad, [weights.sum(0)] * k, {
            "no gradient comes back to x":
                numbers(x_grad) in ([None] * k, numbers(0 * weights)),
            "the gradient goes back as if y were x. But a rank's x is in every rank's "
            "y: what comes back is the sum over ranks": weights,
            "this is the own gradient, times the number of ranks; but the ranks' "
            "gradients are different": k * weights,
            "this is the mean over ranks; the sum is wanted": [weights.mean(0)] * k,
            "this is the own gradient, divided by the number of ranks; the sum of all "
            "is wanted": weights / k,
            "every rank has rank 0's gradient; the sum over ranks is wanted":
                [weights[0]] * k})
        yield say(f"{back} the gradient that also goes to another tensor, t", t_grad,
                  weights, {
            "backward writes into the gradient that it is given, and others use that "
            "too: clone first": True})


def parts():
    """Return what `SyncBatchNorm` is judged with, not the learner's other answers."""
    def global_statistics(x):
        sums = torch.stack([x.sum(0), x.square().sum(0), 0 * x.sum(0) + len(x)])
        dist.all_reduce(sums)
        mean, square = sums[:2] / sums[2]
        return mean, square - mean.square()

    class AllReduceSum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            part = part.detach().clone()
            dist.all_reduce(part)
            return part

        @staticmethod
        def backward(ctx, gradient):
            return AllReduceSum.forward(ctx, gradient)
    return {"global_statistics": global_statistics, "AllReduceSum": AllReduceSum}


@exercise("ps6/sync_batch_norm", points=5, seconds=60, parts=parts)
def sync_batch_norm(random, SyncBatchNorm):
    """Train for two steps on ranks, then evaluate: there, and where no ranks are."""
    for k in 2, 3, 4, 1:
        features = random.randint(2, 3)
        steps = [[[rand(random, size, features) for size in sizes] for _ in range(2)]
                 for sizes in (_sizes(random, k), _sizes(random, k))]
        options = {"eps": random.uniform(0.01, 0.1),
                   "momentum": random.uniform(0.15, 0.4)}
        state = {name: rand(random, features) * (0.75 if scale else 1) + 1.25 * scale
                 for name, scale in (("weight", 1), ("bias", 0), ("running_mean", 0),
                                     ("running_var", 1))}
        test = rand(random, 3, features)

        def layer(kind, *names, options=options, state=state):
            norm = kind(len(state["weight"]), **options).double()
            norm.load_state_dict({name: state[name] for name in
                                  ("weight", "bias", *names)}, strict=False)
            return norm

        def work(layer=layer, steps=steps, test=test):
            norm, results = layer(SyncBatchNorm), []
            for step in steps:
                x, factors = (part[dist.get_rank()] for part in step)
                norm.zero_grad()
                y, = tensors([norm(x.requires_grad_())], 1, "SyncBatchNorm")
                (y * factors).sum().backward()
                results.append(numbers(
                    [y, norm.running_mean, norm.running_var, x.grad, norm.weight.grad,
                     norm.bias.grad]))
            norm.train(False)
            with watched() as calls:
                norm(test.clone())
            return results, len(calls), bool(norm.running_mean.requires_grad
                                             or norm.running_var.requires_grad)
        results, *others = zip(*on_ranks(work, k, SECONDS))
        truth = layer(nn.BatchNorm1d)
        for number, (xs, factors) in enumerate(steps):
            got = list(zip(*(of_rank[number] for of_rank in results)))
            say = about(f"{k} ranks, step {number + 1}, eps {truth.eps:.3f}, momentum "
                        f"{truth.momentum:.3f}, x = {shorten(xs, 200)}")
            yield from _forward(say, truth, xs, *got[:3])
            yield from _backward(say, truth, xs, factors, *got[3:])
        names = "running_mean", "running_var"
        yield from _eval(layer(SyncBatchNorm, *names), layer(nn.BatchNorm1d, *names),
                         test, *others)


def _forward(say, norm, xs, y, means, variances):
    x, k, m, eps = torch.cat(xs), len(xs), norm.momentum, norm.eps
    mean, var, squares = x.mean(0), _variance(x), (x * x).mean(0)
    old_mean, old_var = norm.running_mean.clone(), norm.running_var.clone()
    right, bias = norm(x), norm.bias

    def shards(values):
        return values.split([len(shard) for shard in xs])
    of_means, centred = sum(shard.mean(0) for shard in xs) / k, (x - mean) * norm.weight
    yield say("y", y, shards(right), {
        "every rank normalises with the statistics of its own rows":
            [_affine(norm, shard) for shard in xs],
        "this takes the mean of the ranks' means: a rank with few rows counts as much "
        "as one with many":
            shards(_affine(norm, x, of_means, squares - of_means ** 2)),
        "the sums are those of all ranks, the number of rows is not":
            [_affine(norm, shard, x.sum(0) / len(shard), (x * x).sum(0) / len(shard)
                     - (x.sum(0) / len(shard)) ** 2) for shard in xs],
        "this takes the mean of the ranks' variances":
            shards(_affine(norm, x, mean, sum(map(_variance, xs)) / k)),
        "y takes the biased variance, divided by the rows, not by rows - 1":
            shards(_affine(norm, x, mean, x.var(0))),
        "the module's weight and bias are missing":
            shards((x - mean) / (var + eps).sqrt()),
        "eps stands under the root: sqrt(variance + eps)":
            shards(centred / (var.sqrt() + eps) + bias),
        "the root of the variance is missing": shards(centred / (var + eps) + bias),
        "eps is the module's own, self.eps":
            shards(centred / (var + 1e-5).sqrt() + bias),
        "running statistics are for eval mode":
            shards(_affine(norm, x, norm.running_mean, norm.running_var))})
    yield say("running_mean", means, [norm.running_mean] * k, {
        "momentum is the weight of what is new: (1 - momentum) * old + momentum * new":
            [m * old_mean + (1 - m) * mean] * k,
        "momentum is the module's own, self.momentum":
            [0.9 * old_mean + 0.1 * mean] * k,
        "the running mean has not changed": [old_mean] * k,
        "the ranks' running means differ: each took the mean of its own rows":
            unequal(means)})
    yield say("running_var", variances, [norm.running_var] * k, {
        "running_var takes the unbiased variance: n / (n - 1) times the biased one":
            [(1 - m) * old_var + m * var] * k,
        "the running variance has not changed": [old_var] * k,
        "the ranks' running variances differ: n is the number of all ranks' rows":
            unequal(variances)})


def _backward(say, norm, xs, factors, x_grad, weight_grad, bias_grad):
    sizes, x = [len(shard) for shard in xs], torch.cat(xs).requires_grad_()
    losses = [(part * f).sum() for part, f in zip(_affine(norm, x).split(sizes),
                                                  factors)]
    own = [torch.autograd.grad(loss, x, retain_graph=True)[0].split(sizes)[rank]
           for rank, loss in enumerate(losses)]
    total, = torch.autograd.grad(sum(losses), x)
    mean, root = x.detach().mean(0), (_variance(x.detach()) + norm.eps).sqrt()
    given = "the loss is the sum over ranks of (y * factors).sum();"
    yield say(f"{given} x.grad", x_grad, total.split(sizes), {
        "mean and variance are taken for constants; but they depend on x. The sum over "
        "ranks must let gradients through": [f * norm.weight / root for f in factors],
        "only the own rank's loss sends something back. In backward, too, the ranks' "
        "gradients must be added up": own})
    yield say(f"{given} weight.grad, of the rank's own rows", weight_grad,
              [((shard - mean) / root * f).sum(0) for shard, f in zip(xs, factors)], {
        "the ranks' gradients are added up or averaged here; that is DDP's work":
            not unequal(weight_grad)})
    yield say(f"{given} bias.grad, of the rank's own rows", bias_grad,
              [f.sum(0) for f in factors])


def _eval(norm, truth, test, calls, on_a_graph):
    norm.train(False)
    try:
        alone = norm(test.clone())
    except (RuntimeError, ValueError) as error:  # no ranks to talk to
        alone = f"{type(error).__name__}: {error}"
    mean, var, k = truth.running_mean, truth.running_var, len(calls)
    say = about("eval mode, in a process without ranks; x = "
                f"{shorten(test)}, running mean {shorten(mean)}, running variance "
                f"{shorten(var)}")
    yield about(f"{k} ranks")(
        "two steps of training; does a running statistic hang on a graph?", on_a_graph,
        [False] * k, {
            "update them under torch.no_grad(), or every step's graph stays in memory":
                True})
    yield say("y", alone, _affine(truth, test, mean, var), {
        "in eval mode only the running statistics count, and nobody is asked":
            isinstance(alone, str),
        "these are the statistics of the rows themselves, not the running ones":
            _affine(truth, test)})
    yield say("the running statistics afterwards",
              [norm.running_mean, norm.running_var], [mean, var],
              {"eval mode changes nothing": True})
    yield about(f"{k} ranks")(
        "eval mode; how often does each communicate?", calls, [0] * k, {
            "the running statistics are the same on all ranks: nothing has to be sent":
                True})


def _affine(norm, x, mean=None, var=None):
    """Normalise x as a layer does, with its own statistics or with others."""
    if mean is None:
        mean, var = x.mean(0), _variance(x)
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


def _sizes(random, k):
    """Draw how many rows each rank has, no two the same."""
    small = {3: (1,), 4: (0, 1)}.get(k, ())  # sizes that must occur
    return random.sample([*small, *random.sample(range(2, 7), k - len(small))], k)


def _variance(x):
    """Return the mean squared distance from the mean; NaN where there are no rows."""
    return ((x - x.mean(0)) ** 2).mean(0)


class Forwards(saved_tensors_hooks):
    """Note how many rows go through a model, and what autograd holds then.

    rows: of the largest forward in a block. held: most tensors that autograd had saved
    in it, and still had when another forward began.
    """

    def __init__(self, model):
        model.register_forward_pre_hook(self._note)
        super().__init__(self._pack, lambda box: box())

    def __enter__(self):
        self.saved, self.rows, self.held = [], 0, 0
        super().__enter__()

    def _pack(self, tensor):
        def box():  # autograd lets go of it together with the graph
            return tensor
        self.saved.append(weakref.ref(box))
        return box

    def _note(self, model, args):
        self.rows = max(self.rows, len(args[0]))
        self.held = max(self.held, sum(box() is not None for box in self.saved))


def one_by_one(say, most, rows, held):
    """Compare: did microbatches, of at most so many rows, go one by one on a rank?"""
    yield say(f"rows of the largest forward, of the {most} that are needed",
              [max(number, most) for number in rows], [most] * len(rows), {
        "more rows at once need more memory: there is none for that": True})
    yield say("tensors that autograd still holds when a forward begins", held,
              [0] * len(held), {
        "call backward after each forward, and leave out retain_graph: until then its "
        "graph is kept": True})


@exercise("ps6/accumulate", points=3)
def accumulate(random, accumulate):
    """Take two steps; see what goes through the model at once."""
    for count, kind in zip((2, 3, 4, 1), KINDS):
        lr, weight, stale = _draw_weights(random)
        steps = [[draw_batch(random, size)
                  for size in random.sample(range(1, 7), count)] for _ in range(2)]
        model = linear(weight, stale)
        rule, forwards = optimizer(kind, model.parameters(), lr), Forwards(model)
        after = descend([weight], steps, lr, kind, whole)
        for number, (microbatches, (right,)) in enumerate(zip(steps, after)):
            with forwards:
                mean_loss = accumulate(model, F.cross_entropy, cloned(microbatches),
                                       rule)
            sizes = [len(y) for _, y in microbatches]
            say = about(f"microbatches of {sizes} rows, {kind}, lr {lr:.3f}, "
                        f"step {number + 1}")
            yield say("the weights", model.weight, right,
                      STEPPED if kind != "SGD" else _steps_in_parts(
                          microbatches, lr, weight, None if number else stale))
            factors = whole(microbatches)
            yield say("the mean loss of all rows", mean_loss,
                      loss([weight], microbatches, factors), [
                ("this is the loss after the step; the one before it is wanted",
                 loss([right], microbatches, factors)),
                *(("this is the loss of the last microbatch alone",
                   loss([now], microbatches[-1:])) for now in (weight, right))], 1e-6)
            yield from one_by_one(say, max(sizes), [forwards.rows], [forwards.held])
            weight = right


def _steps_in_parts(pieces, lr, weight, stale):
    """Yield hints: what the weights would be after a step that is taken otherwise."""
    n, all_rows = len(pieces), whole(pieces)
    large = [1 / len(y) for _, y in pieces]
    means = [factor / n for factor in large]

    def moved(factors):
        return weight - lr * gradients([weight], pieces, factors)[0]

    def in_each(factors, keep):
        now, gradient = weight, 0
        for piece, factor in zip(pieces, factors):
            gradient = keep * gradient + gradients([now], [piece], [factor])[0]
            now = now - lr * gradient
        return now
    yield "nothing has moved", weight
    yield ("this is the mean of the microbatches' means: a row of a small one counts "
           "more. Weigh each by its rows", moved(means))
    yield (f"the means of {n} microbatches are added up, not averaged: the step is "
           f"about {n} times too large", moved(large))
    yield "this is the sum over all rows, not divided by their number", moved([1] * n)
    for factors in all_rows, means, large:
        for keep in 0, 1:
            yield ("there was a step in every microbatch: one is wanted",
                   in_each(factors, keep))
        yield ("only the last microbatch counts: clear gradients once, not in each",
               moved([0] * (n - 1) + factors[-1:]))
    yield ("the last microbatch is left out: step after its backward, not before",
           moved([*all_rows[:-1], 0]))
    yield ("old gradients are in it: clear them before the first backward",
           stale is not None and moved(all_rows) - lr * stale)


@exercise("ps6/accumulate_ddp", points=3, seconds=60)
def accumulate_ddp(random, accumulate_ddp):
    """Take two steps on ranks with torch's DDP; count averages."""
    for k, kind in zip((2, 3, 4, 1), KINDS):
        lr, weight, stale = _draw_weights(random)
        steps = [[[draw_batch(random, random.randint(1, 6)) for _ in range(count)]
                  for _ in range(k)]
                 for count in (random.choice([2, 3]), 1 if k % 2 else 2)]

        def work(weight=weight, stale=stale, kind=kind, lr=lr, steps=steps):
            watch = []

            def take(model, microbatches, rows, rule):
                forwards = Forwards(model)
                with forwards:
                    accumulate_ddp(model, F.cross_entropy, microbatches, rows, rule)
                watch.append([forwards.rows, forwards.held])
            model = linear(weight, stale)
            rule = optimizer(kind, model.parameters(), lr)
            return list(zip(ddp_steps(model, rule, steps, take), watch))
        results = zip(*on_ranks(work, k, SECONDS))
        after = descend([weight], [sum(step, []) for step in steps], lr, kind, whole)
        for number, (ranks, got, (right,)) in enumerate(zip(steps, results, after)):
            done, watch = zip(*got)
            say = about(f"{k} ranks, microbatches of {_rows(ranks)} rows, {kind}, lr "
                        f"{lr:.3f}, step {number + 1}")
            if kind != "SGD":
                yield say("the weights", [one["weight"] for one in done], [right] * k,
                          STEPPED)
            else:
                yield from step_of_ranks(ranks, lr, number, weight, done,
                                         None if number else stale)
            yield from one_by_one(say, max(map(max, _rows(ranks))), *zip(*watch))
            weight = right


def ddp_steps(module, rule, steps, step):
    """Take steps on this rank; return weights and messages after each, as dicts.

    steps: for each step the microbatches of every rank. step(model, microbatches, rows,
    rule) takes one; `model` is torch's DDP around the module, `rows` are those of all
    ranks, `rule` is the module's optimizer.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    averaged, done, model = [], [], DistributedDataParallel(module)

    def note(state, bucket):
        averaged.append(bucket.index())
        return allreduce_hook(None, bucket)
    model.register_comm_hook(None, note)
    for ranks in steps:
        rows = sum(map(sum, _rows(ranks)))
        with watched() as calls:
            step(model, cloned(ranks[dist.get_rank()]), rows, rule)
        done.append({"weight": numbers(module.weight), "averaged": len(averaged),
                     "others": len(calls) - len(averaged)})
        averaged.clear()
    return done


def step_of_ranks(ranks, lr, number, weight, got, stale=None):
    """Yield what is wrong with a step of SGD on ranks; return the right weights.

    ranks: the microbatches of each. weight: before the step, on all. got: a dict for
    each rank, as of ddp_steps. stale: an old gradient that must have been cleared.
    """
    k, n, sizes = len(ranks), len(ranks[0]), _rows(ranks)
    total, (weights, averaged, others) = sum(map(sum, sizes)), (
        [one[name] for one in got] for name in ("weight", "averaged", "others"))
    say = about(f"{k} ranks, microbatches of {sizes} rows, lr {lr:.3f}, step "
                f"{number + 1}")

    def moved(divisor):
        factors = [1 / divisor(size, own) for own in sizes for size in own]
        return [weight - lr * gradients([weight], sum(ranks, []), factors)[0]] * k
    right = moved(lambda size, own: total)
    yield say("the weights on each rank", weights, right, {
        "nothing has moved": [weight] * k,
        "replicas differ: one stepped with a gradient that was not averaged. Step "
        "after the last backward, whose forward stands outside of no_sync":
            unequal(weights),
        f"the step is {k} times too small: DDP takes the mean over ranks, so a sum "
        "needs the factor world_size": k > 1 and moved(lambda size, own: total * k),
        f"the step is {k} times too large: DDP has divided by the number of ranks":
            k > 1 and moved(lambda size, own: total / k),
        "this is the mean of the ranks' means: a row of a rank with few rows counts "
        "more": moved(lambda size, own: sum(own) * k),
        "this is a mean of means: a row of a small microbatch counts more":
            moved(lambda size, own: size * n * k),
        f"the means of {n} microbatches are added up, not averaged":
            moved(lambda size, own: size * k),
        "old gradients are in it: clear them before the first backward":
            stale is not None and [right[0] - lr * stale] * k,
        "one step is wanted, after the last microbatch, and gradients are cleared "
        "once, before the first": n > 1})
    yield say("how often does DDP average gradients?", averaged, [1] * k, {
        "no_sync is for all microbatches but the last; and the forward must stand "
        "inside it: the forward decides": averaged[0] == n,
        "leave averaging to DDP, in the last backward": True})
    yield say("messages beside DDP's", others, [0] * k, {
        "when the last backward returns, DDP has averaged: nothing is left to do":
            True})
    return right[0]


def linear(weight, grad):
    """Return a layer without bias that has a gradient already."""
    model = nn.Linear(3, 4, bias=False, dtype=torch.float64)
    model.load_state_dict({"weight": weight})
    model.weight.grad = grad.clone()
    return model


def cloned(batches):
    """Return the pairs of tensors as copies."""
    return [(X.clone(), y.clone()) for X, y in batches]


def _draw_weights(random):
    return random.uniform(0.1, 1), rand(random, 4, 3), rand(random, 4, 3)


def whole(batches):
    """Return the factors of the mean over all rows."""
    return [1 / sum(len(y) for _, y in batches)] * len(batches)


def _rows(ranks):
    return [[len(y) for _, y in batches] for batches in ranks]
