"""Training by hand: what lessons ask, and in problem set 1 something new like it.

Replicas, shards, all-reduce, a step. The truth of the last, a step of LeNet, is
autograd on the unsplit minibatch.
"""

import math
from collections import namedtuple
from functools import partial
from itertools import combinations, pairwise
from statistics import fmean

import torch

from course.school import draws
from course.school.checks import (
    Partly,
    about,
    close,
    exercise,
    flat,
    is_nan,
    numbers,
    remember,
    shorten,
    so_many,
)
from course.school.draws import META, SHAPES, forms, in_memory, moved, rand
from manual_dp import init_params, lenet, loss, try_devices
from manual_dp import train_batch as right_step

# of a minibatch. weight: the sum of its rows' weights. loss: of its rows, each times
# its weight, the sum. grads: the gradients of that.
Shard = namedtuple("Shard", "rows weight loss grads")
NEGATIVE = "a difference may be below 0: take its absolute value"


@exercise("split_the_batch/split_batch")
def split_batch(random, split_batch):
    """Cut rows that divide and rows that do not; then hand over unequal lengths."""
    for k, n in (3, 10), (4, 10), (4, 5), (4, 3), (3, 9), (2, 5), (1, 4):
        X, y = rand(random, n, 2), torch.tensor(random.sample(range(100), n))
        lists = tuple(split_batch(X.clone(), y.clone(), try_devices(k)))
        say = about(f"{n} rows, {n} labels, {so_many(k, 'device')}")
        yield say(
            "how many lists are returned?",
            len(lists),
            2,
            {
                "these are pairs, one for each device: return two lists, X_shards and "
                "y_shards": len(lists) == k
            },
        )
        X_shards, y_shards = lists
        rows = -(-n // k)
        cuts = [slice(rank * rows, (rank + 1) * rows) for rank in range(k)]
        got = [len(shard) for shard in X_shards]
        other_sizes, left_out = sum(got) == n, len(got) == k and sum(got) < n
        yield say(
            "rows of each shard",
            got,
            [len(X[cut]) for cut in cuts],
            {
                "torch's chunk returns fewer shards than devices when rows run out: "
                "add empty ones": len(got) < k,
                "shards are of ceil(rows / devices) rows, the last ones "
                "shorter": other_sizes,
                f"rows are left out: {n} // {k} is rounded down; a full shard has "
                "n / k rows, rounded up": left_out,
            },
        )
        yield say(
            f"y = {y.tolist()}; y_shards",
            y_shards,
            [y[cut] for cut in cuts],
            {"cut y where X is cut, and keep its order": True},
        )
        yield say("X_shards", X_shards, [X[cut] for cut in cuts])
        right = [part[cut] for part in (X, y) for cut in cuts]
        yield say(
            "what each shard is, of X and of y",
            forms([*X_shards, *y_shards]),
            forms(right),
            {"a shard keeps its dtype, and an empty one the other dimensions": True},
        )
    X, y = rand(random, 6, 2), torch.tensor([3, 1, 2, 0, 5, 4])
    raised = [
        _raised(split_batch, *pair, try_devices(2))
        for pair in ((X.clone(), y[:4]), (X[:4].clone(), y.clone()))
    ]
    yield about("6 rows, 4 labels, then the other way round")(
        "what did it raise?",
        raised,
        ["ValueError"] * 2,
        {
            "compare len(X) with len(y) before you cut: either may be the longer "
            "one": True
        },
    )
    yield moved(
        split_batch,
        (X, y, [META, draws.CPU, META]),
        [["meta", "cpu", "meta"]] * 2,
        "shard.to(device)",
    )


def _raised(function, *args):
    try:
        function(*args)
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return "nothing"


@exercise("ps1/largest_difference", points=2)
def largest_difference(random, largest_difference):
    """Move one parameter of the replicas, up or down."""
    for i, *moves in (3, 0, 0.3, 0.1, -0.5), (2, 0, -0.2), (0, 0.1, 0, 0.4), (1, 0):
        params = [rand(random, *shape) for shape in SHAPES]
        replicas = []
        for move in moves:
            own = [p.clone() for p in params]
            own[i] += move
            own[i].view(-1)[1:] -= move / 2  # so that neither sum nor mean is right
            own[i - 1] += move / 4  # so that no sum over the parameters is right
            replicas.append([p.requires_grad_() for p in own])
        same = remember(device_params=replicas)
        got = largest_difference(replicas)
        steps = [move - moves[0] for move in moves]
        farthest = max(map(abs, steps))
        of_neighbours = max([abs(b - a) for a, b in pairwise(moves)], default=0)
        falls = max([a - b for a, b in combinations(moves, 2)], default=0)
        of_two = max(moves) - min(moves)
        parts = 1, 0.5, 0.25
        single = [part * (a - b) for part in parts for a in moves for b in moves]
        say = about(f"replicas of which parameter {i} was moved by up to {moves}")
        yield from same(say)
        yield say(
            "the largest difference",
            got,
            of_two,
            {
                NEGATIVE: any(
                    one and close(numbers(got), one)
                    for one in (max(steps), max(0, falls))
                ),
                "compare every two replicas, not only each with the first": farthest,
                "compare every two replicas, not only neighbours": of_neighbours,
                "look at every parameter": any(
                    close(numbers(got), part * of_two) for part in (0, 0.25)
                ),
                "take the largest over the parameters, not their sum": 1.25 * of_two,
                "no number of a replica is that far from another one's: compare "
                "number by number, take no norm, sum or mean before": not any(
                    close(numbers(got), one) for one in single
                ),
            },
        )
        yield say(
            "what is returned",
            "a tensor" if isinstance(got, torch.Tensor) else "a number",
            "a number",
            {"the number is right, and still a tensor: item() makes a float": True},
        )


@exercise(
    "ps1/split_by_counts", points=3, cases=[[3, 1, 2], [2, 0, 3], [4], [0, 5, 1, 1]]
)
def split_by_counts(random, split_by_counts, *, counts):
    """Cut tensors of several shapes and dtypes."""
    wanted = [  # the shards come first: whoever reads this finds no way to cut
        {
            "image": rand(random, n, 2),
            "weight": rand(random, n),
            "label": torch.tensor(random.sample(range(100), n), dtype=torch.long),
        }
        for n in counts
    ]
    batch = {name: torch.cat([one[name] for one in wanted]) for name in wanted[0]}

    def all_forms(shards):
        return [forms(shard[name] for name in batch) for shard in shards]

    own_multiples = [
        {name: t[rank * count :][:count] for name, t in batch.items()}
        for rank, count in enumerate(counts)
    ]
    handed = {name: tensor.clone() for name, tensor in batch.items()}, list(counts)
    same = remember(batch=handed[0], counts=handed[1])
    shards = split_by_counts(*handed)
    say = about(f"counts {counts}, a batch of {shorten(batch)}")
    got, empty = numbers(shards), dict.fromkeys(batch, [])
    if not isinstance(got, list):
        got = []
    yield from same(say)
    yield say(
        "the shards",
        shards,
        wanted,
        {
            "a rank begins where the one before has ended": own_multiples,
            "a rank whose count is 0 gets a dict as well, with tensors without "
            "rows": any(one != empty for one, n in zip(got, counts) if not n),
            "each rank has as many rows as it should, but others: the next ones are "
            "wanted, in their order": close(*map(_lengths, (got, numbers(wanted)))),
        },
    )
    yield say(
        "what each tensor is",
        all_forms(shards),
        all_forms(wanted),
        {"keep dtypes, and the other dimensions of what is empty": True},
    )


def _lengths(shards):
    """Return how many rows each tensor of each shard has, as far as it has rows."""
    return [
        {name: len(rows) for name, rows in shard.items() if isinstance(rows, list)}
        for shard in shards
        if isinstance(shard, dict)
    ]


@exercise("allreduce/allreduce")
def allreduce(random, allreduce):
    """Keep hold of the tensors, whose rows do not lie one behind the other."""
    for k in 3, 2, 5, 1:  # with one rank, few mistakes can be told apart
        # the book's own cannot index a tensor without dimensions
        for shape in (random.randint(1, 5),), (random.randint(2, 4), 3):
            held = [rand(random, *shape) for _ in range(k)]
            kept = [t.t().contiguous().clone().t() for t in held]
            handed, views = list(kept), [t.detach() for t in kept]
            returned = allreduce(handed)
            yield from draws.summed(held, kept, handed, returned, views)


@exercise("ps1/weighted_allreduce", points=3)
def weighted_allreduce(random, weighted_allreduce):
    """Weigh tensors; a rank of weight 0 holds NaN, as the mean of no rows is."""
    for weights, shape in (
        ([2, 1, 3], (5,)),
        ([3, 5], ()),
        ([1, 0, 4, 2], (2, 3)),
        ([0, 2], ()),
        ([3], (4,)),
    ):
        k = len(weights)
        held = [rand(random, *shape) * (1 if w else math.nan) for w in weights]
        kept = [t.clone() for t in held]
        views = [t.detach() for t in kept]
        counts = list(weights)
        same = remember(weights=counts)
        weighted_allreduce(list(kept), counts)
        total, often = sum(w * t for w, t in zip(weights, held) if w), 0
        for w, t in zip(weights, held):
            if w:
                often = (often + w * t) / sum(weights)
        mean = numbers([total / sum(weights)] * k)
        given, now = f"weights {weights}, tensors {shorten(held)}", numbers(kept)
        has_nan = not close(now, now)
        unwritten = has_nan and all(
            close(one, right) for one, right, w in zip(now, mean, weights) if w
        )
        yield from same(about(given))
        yield about(given)(
            "the tensors",
            now,
            mean,
            {
                "the tensors hold what they held: write into them, with copy_": held,
                "a rank of weight 0 gets the result, too: write into every "
                "tensor": unwritten,
                "0 times nan is nan: leave out a rank whose weight is 0": has_nan,
                "the weights are left out": [sum(held) / k] * k,
                "divide once, when all ranks are added up: here the first ones were "
                "divided again and again": [often] * k,
                "divide by the sum of the weights": [total] * k,
                "divide by the sum of the weights, not by the ranks": [total / k] * k,
            },
        )
        yield in_memory(given, views, kept)


@exercise("ps1/clipped_sgd", points=2, cases=[2, 0.5, 1.5, 0.9])
def clipped_sgd(random, clipped_sgd, *, long):
    """Take steps with gradients that are too long, and with some that are not."""
    size, lr = random.randint(2, 50), random.uniform(0.5, 1)
    params, old, grads, views = _with_gradients(random)
    own = [float(grad.norm()) / size for grad in grads]
    norm = math.hypot(*own)
    most = norm / long
    returned = clipped_sgd(params, lr, size, most)

    def stepped(*factors):  # one for all gradients, or one for each of the three
        if len(factors) == 1:
            factors = factors * 3
        return [p - lr / size * f * g for p, f, g in zip(old, factors, grads)]

    of_sum = stepped(min(1, most / norm / size))
    factors_of_each = [min(1, most / one) for one in own]
    added_up = "the norm of all is no sum of norms: add up squares, and take the root"
    moves, line = (
        torch.cat([(p.detach() - at).flatten() for p, at in zip(some, old)])
        for some in (params, stepped(1))
    )
    turned = float(moves @ line) < (1 - 1e-9) * float(moves.norm() * line.norm())

    given = (
        f"lr {lr:.3f}, batch_size {size}, max_norm {most:.3g}, gradients "
        f"{shorten(grads, 200)}, whose mean has the norm {norm:.3g}"
    )
    yield from _stepped(
        given,
        params,
        old,
        views,
        stepped(min(1, most / norm)),
        {
            "divide by batch_size before you compare with max_norm": of_sum,
            "there is one norm, of all gradients together": stepped(*factors_of_each),
            added_up: stepped(min(1, most / sum(own))),
            "there is one norm, of all gradients together, not the largest of "
            "them": stepped(min(1, most / max(own))),
            "a gradient that is short enough stays as it is": stepped(most / norm),
            "nothing was shortened: multiply by max_norm / norm where the norm is "
            "larger than max_norm": stepped(1),
            "the step goes in another direction than the gradient: multiply all its "
            "numbers by one factor": turned,
        },
        1e-5,
    )
    yield about(given)(
        "what is returned",
        returned,
        norm,
        {
            "return the norm from before the gradient is shortened": most,
            added_up: sum(own),
        },
        1e-5,
    )


def _with_gradients(random):
    """Return parameters with gradients, both as plain tensors, and views."""
    shapes = (1,), (4,), (2, 3)
    old = [rand(random, *shape) for shape in shapes]
    grads = [rand(random, *shape) for shape in shapes]
    params = [p.clone().requires_grad_() for p in old]
    for p, grad in zip(params, grads):
        p.grad = grad.clone()
    return params, old, grads, [p.detach() for p in params]


def _stepped(given, params, old, views, right, hints, tolerance):
    """Compare the parameters after a step, their gradients and their memory."""
    left = sum(float(p.grad.abs().sum()) for p in params if p.grad is not None)
    say = about(given)
    yield say(
        "the parameters",
        params,
        right,
        {
            "the parameters have not moved: p = p - ... makes a new tensor, and with "
            "gradients that are zeroed before the step there is none": old,
            **hints,
        },
        tolerance,
    )
    yield say(
        "sum of |gradient| afterwards",
        left,
        0.0,
        {"gradients must be zeroed, or the next step adds to them": True},
    )
    yield in_memory(given, views, params)
    yield say(
        "do the parameters still want gradients?",
        [p.requires_grad for p in params],
        [True] * 3,
        {"requires_grad_(False) stays in force: torch.no_grad() ends by itself": True},
    )


@exercise("one_step/train_batch")
def train_batch(random, train_batch):
    """Take steps; before some, gradients hold what an interrupted one has left."""
    return _two_steps(random, lambda X, y, w, *more: train_batch(X, y, *more))


@exercise("one_step/stepwise")
def stepwise(random, stepwise):
    """Hand over a step that is right, one that is halved, and some that fail once."""
    params = init_params("he", draws.generator(random), torch.float64)
    X, y = draws.images(random, 4)
    lr = random.uniform(0.05, 0.1)
    say = about(f"4 rows, 3 devices, lr {lr:.3f}")
    falls, apart = _fall_short(params, X, y, lr, 3)
    sizes = [[t.abs() for t in step] for step in falls]
    short = [max(float(t.max()) for t in step) for step in sizes]
    of_one = [max(float(step[i].max()) for step in sizes) for i in range(len(params))]
    signed = [max(float((s * t).max()) for t in sum(falls, [])) for s in (1, -1)]
    sums = [float(sum(t.sum() for t in step)) for step in sizes]
    count = sum(p.numel() for p in params)
    same = remember(params=params)

    def far(step, steps=3):
        return numbers(stepwise(X, y, params, try_devices(3), lr, steps, step))

    watched = _Failing(math.inf)
    got = far(watched)
    yield from same(say)
    yield say(
        "3 steps; how often was `step` called?",
        watched.calls,
        3,
        {
            "the last step is missing: take all of `steps`": 2,
            "the single device takes the course's train_batch, not `step`: two of the "
            "same agree, right or wrong": 6,
            "call `step` once in each of the `steps`": True,
        },
    )
    yield say(
        "3 steps; how often did `step` get other weights than those it had left?",
        watched.others,
        0,
        {
            "the replicas go on from where the step before has left them: the single "
            "device works on a copy of one of them, made with get_params": True
        },
    )
    yield say(
        "3 steps, all right; the largest difference",
        got,
        0.0,
        {
            "return one number, the largest": isinstance(got, list),
            "`step` was right, so the single device was not: does it start from a copy "
            "of the replicas' weights, made before they move, and take train_batch "
            "with X, y and lr?": True,
        },
        1e-12,
    )
    got = far(_half_step)
    yield say(
        "3 steps, each halved; the largest difference",
        got,
        max(short),
        {
            "look at every parameter of a replica": any(
                close(got, one, 1e-6) for one in of_one
            ),
            "take the largest of the differences, not their sum or mean": any(
                close(got, one, 1e-6)
                for total in (max(sums), sum(sums), 3 * max(sums), 3 * sum(sums))
                for one in (total, total / count)
            )
            or close(got, fmean(short), 1e-6),
            "no difference was seen, and there is one: compare each replica with a "
            "single device, which takes the course's train_batch": 0.0,
            "this is the sum over steps: keep the largest": sum(short),
            "this is the last step's: keep the largest of all steps": short[-1],
            NEGATIVE: any(close(got, one, 1e-6) for one in signed),
            "these are two runs: let the single device start from the replicas, at "
            "each step anew": max(apart),
        },
        1e-6,
    )
    every = (0, 1, 2)
    for at, ranks, add in (
        (1, every, 0.5),
        (4, every, -0.5),
        (4, (0,), 0.5),
        (4, (1,), -0.5),
        (4, (2,), 0.5),
    ):
        got = far(_Failing(at, ranks, add), 4)
        yield say(
            f"4 steps, step {at} adds {add} on ranks {ranks}; the largest difference",
            got,
            0.5,
            {
                NEGATIVE: add < 0 and ranks == every and close(got, 0.0, 1e-12),
                "look at every replica, after every step, and keep the largest": True,
            },
        )
    yield say(
        "4 steps, the last writes NaN into a weight on rank 1; is the result NaN?",
        is_nan(far(_Failing(4, (1,), math.nan), 4)),
        True,
        {
            "a difference that is NaN got lost: Python's max(0.0, nan) is 0.0. Put all "
            "differences into a tensor, and take its max()": True
        },
    )


def _fall_short(params, X, y, lr, steps):
    """Return by how much each of some half steps falls short of a whole one: tensors.

    Return as well how far a run of whole steps is away then, if both start from params.
    """

    def mean_gradient(params):
        [one] = _shards(params, X, y, torch.ones(len(X)), 1)
        return [g / len(X) for g in one.grads]

    def farthest(tensors):
        return max(float(t.abs().max()) for t in tensors)

    whole, short, apart = params, [], []
    for _ in range(steps):
        grads = mean_gradient(params)
        params = [p - lr / 2 * grad for p, grad in zip(params, grads)]
        whole = [p - lr * grad for p, grad in zip(whole, mean_gradient(whole))]
        short.append([lr / 2 * grad for grad in grads])
        apart.append(farthest([p - q for p, q in zip(params, whole)]))
    return short, apart


def _half_step(X, y, device_params, devices, lr):
    right_step(X, y, device_params, devices, lr / 2)


class _Failing:
    """A right step; but its call number `at` moves a weight on each of `ranks`.

    others: of how many calls the replicas were not as the call before had left them.
    """

    def __init__(self, at, ranks=(), add=0.0):
        self.at, self.ranks, self.add = at, ranks, add
        self.calls, self.others, self.left = 0, 0, None

    def __call__(self, X, y, device_params, devices, lr):
        handed = [[p.detach().clone() for p in one] for one in device_params]
        if self.left and not all(map(_equal, handed, self.left)):
            self.others += 1
        right_step(X, y, device_params, devices, lr)
        self.calls += 1
        if self.calls == self.at:
            for rank in self.ranks:
                device_params[rank][2].data.view(-1)[0] += self.add
        self.left = [[p.detach().clone() for p in one] for one in device_params]


def _equal(replica, other):
    return all(map(torch.equal, replica, other))


@exercise("ps1/weighted_train_batch", points=5, seconds=90)
def weighted_train_batch(random, weighted_train_batch):
    """Take steps with weights for rows, of which the last ones are padding."""
    return _two_steps(random, weighted_train_batch, weighted=True)


def _two_steps(random, train, weighted=False):
    """Take two steps on 3, 2, 4 devices and on one; compare each.

    train: called with (X, y, weights of the rows, replicas, devices, lr). weighted: are
    the weights not all 1? Then right steps are most of the points, and a wrong loss
    comes last.
    """
    wrong_loss = None
    for k, sizes in (3, (7, 4)), (2, (5, 4)), (4, (3, 6)), (1, (4, 4)):
        devices, lr = try_devices(k), random.uniform(0.05, 0.2)
        stale, before = 0, 1  # stands in .grad at first, and is divided by `before`
        if k > 2 and not weighted:
            stale = random.uniform(0.5, 1)
        params = init_params("he", draws.generator(random), torch.float64)
        replicas = [draws.replica(params, device) for device in devices]
        if stale:
            for p in sum(replicas, []):
                p.grad = torch.full_like(p, stale)
        left = [torch.full_like(p, stale) for p in params]
        for number, n in enumerate(sizes, 1):
            X, y = draws.images(random, n)
            w, of_weights = torch.ones(n, dtype=torch.float64), ""
            if weighted:
                w = rand(random, n) + 1.5
                w[n - n // 3 :] = 0  # padding
                of_weights = f" of weights {shorten(w)}"
            handed = {"X": X.clone(), "y": y.clone(), "weights": w.clone()}
            same = remember(**handed)
            with draws.calls_of_lenet() as calls:
                got = train(*handed.values(), replicas, devices, lr)
            say = about(
                f"{n} rows{of_weights}, "
                f"{so_many(k, 'device')}, lr {lr:.3f}; step {number}"
            )
            shards = _shards(params, X, y, w, k)
            total = _combined(shards, [1] * k)
            grads = [g / w.sum() for g in total]
            hints = partial(_slips, shards)
            if weighted:
                hints = partial(_slips_with_weights, shards, params, X, y, w)
            # all k replicas add them up again, as sums or as means
            again = [
                [[g / w.sum() + k * old / size for g, old in zip(total, left)]] * k
                for size in (w.sum(), before)
            ]
            late = {LEFT[number - 1]: again}
            yield from same(say)
            yield from _weights(say, replicas, params, grads, lr, hints, late, random)
            message = _loss(say, got, shards)
            if weighted:
                wrong_loss = wrong_loss or message
            else:
                yield message
            yield _who_saw_what(say, calls, replicas, X, w)
            params = [p - lr * g for p, g in zip(params, grads)]
            left, before = total, w.sum()

    def work(X, y, replicas, devices):
        train(X, y, torch.ones(len(X)), replicas, devices, 0.1)

    yield draws.together(work, params, random)
    if wrong_loss:
        yield Partly(
            "4 of 5 points: the steps are right, the loss that is returned is not "
            f"yet.\n{wrong_loss}",
            points=4,
        )


# what to say if gradients were there before the first step, and before the second one
LEFT = (
    "the gradients held numbers before the step, as an interrupted one leaves them, "
    "and these were added: clear them at the start",
    "the gradients of step 1 were still there, and step 2 added to them: zero them "
    "after each step",
)


def _slips(shards):
    """Return {hint: ways}; a way: the gradient that each replica then steps with."""
    k = len(shards)
    whole = sum(shard.weight for shard in shards)
    full = k * shards[0].rows
    own = [shard.weight or 1 for shard in shards]
    slips = {
        f"the step is {whole:.4g} times too large: divide the summed "
        "gradient by the rows of the minibatch, or by the sum of their "
        "weights": [1] * k,
        "divide by the rows of the minibatch, or by the sum of their "
        "weights, not as if all shards were full": [1 / full] * k,
        "every shard counts alike: a mean of means": [1 / w / k for w in own],
        "each rank takes the mean of its losses, and sgd divides again: "
        "let each rank sum": [1 / w / whole for w in own],
        "the means of the ranks are added up: let each rank sum its losses, and divide "
        "once, by the rows of the minibatch": [1 / w for w in own],
        "divide by the rows of the minibatch, or by the sum of their weights, not by "
        "the mean of these over ranks": [k / whole] * k,
        "the sum is divided by the ranks, too: divide it once, by the rows of the "
        "minibatch, or by the sum of their weights": [1 / whole / k] * k,
        "the weights are as they were: the step was taken with zeros, or written into "
        "new tensors": [0] * k,
        "the all-reduce ran after each rank's backward, and added up sums again: call "
        "it once, when all ranks have their gradients": [
            k ** (k - 1 - rank) / whole for rank in range(k)
        ],
    }
    found = {hint: [[_combined(shards, f)] * k] for hint, f in slips.items()}
    found[
        "each rank divides by the rows of its own shard: divide by those of the "
        "minibatch, or by the sum of their weights"
    ] = [[_combined(shards, [1 / max(1, shard.rows)] * k) for shard in shards]]
    return found


def _slips_with_weights(shards, params, X, y, w):
    """Return the same, and mistakes that can be seen only where weights are not 1."""
    k, n = len(shards), len(X)
    plain = _shards(params, X, y, torch.ones_like(w), k)
    masked = _shards(params, X, y, (w > 0).to(w.dtype), k)
    rows = sum(shard.weight for shard in masked)
    return {
        **_slips(shards),
        "the weights of the rows are left out": [[_combined(plain, [1 / n] * k)] * k],
        "the weights tell only which rows count: a row of weight 2 counts twice": [
            [_combined(masked, [1 / size] * k)] * k for size in (rows, float(w.sum()))
        ],
        "divide by the sum of the weights, not by the number of rows": [
            [_combined(shards, [1 / n] * k)] * k
        ],
    }


def _who_saw_what(say, calls, replicas, X, w):
    """Compare which rows went through which replica; those of weight 0 need not."""
    size = -(-len(X) // len(replicas))  # of a full shard
    rows = [[] for _ in (*replicas, "others")]
    for row in w.nonzero().flatten().tolist():
        rows[row // size].append(row)
    # a second look at the loss, without gradients, may be anybody's
    calls = [call for call in calls if call.gradients]
    seen = []
    all_seen = draws.rows_seen(calls, replicas, X)
    if all_seen is None:  # nobody can tell
        return None
    for own in all_seen:
        seen.append(sorted(row for row in set(own) if w[row]))
    return say(
        "rows that went through each replica's weights, and through others",
        seen,
        rows,
        {"every replica works on its own shard, and on no other": True},
    )


def _shards(params, X, y, w, k):
    """Return the k shards of a minibatch whose rows have the weights w."""
    params = [p.detach().clone().requires_grad_() for p in params]
    losses, size, found = w * loss(lenet(X, params), y), -(-len(X) // k), []
    for rank in range(k):
        own = slice(rank * size, (rank + 1) * size)
        l = losses[own].sum()
        grads = torch.autograd.grad(l, params, retain_graph=True)
        found.append(Shard(len(w[own]), float(w[own].sum()), float(l), grads))
    return found


def _combined(shards, factors):
    """Return the sum over shards of a factor times the gradients."""
    return [
        sum(f * g for f, g in zip(factors, same))
        for same in zip(*(shard.grads for shard in shards))
    ]


def _weights(say, replicas, params, grads, lr, hints, late, random):
    """Compare ten numbers of each parameter of each replica; hint from all of them.

    grads: the right ones. hints: called if they are wrong, see `_slips`. late: the
    same as a dict, tried after them.
    """
    # where this step moves the weights most, and anywhere
    places = []
    for g in grads:
        most = g.flatten().abs().topk(min(5, g.numel())).indices.tolist()
        places.append([*most, *random.choices(range(g.numel()), k=5)])

    def some(params):
        return [p.detach().flatten()[at].tolist() for p, at in zip(params, places)]

    def after(steps):  # of every replica, if they step with these gradients
        return [some([p - lr * g for p, g in zip(params, step)]) for step in steps]

    got, right = [some(replica) for replica in replicas], after([grads] * len(replicas))
    looks = {}
    if not close(got, right):
        has_nan = any(x != x for x in flat(got))
        looks[
            "these are nan: a shard without rows, or of padding alone, has no mean, "
            "0 / 0"
        ] = has_nan
        for hint, ways in {**hints(), **late}.items():
            looks[hint] = any(close(got, after(way)) for way in ways)
        looks[
            "replicas differ: each must step with the sum over all, and divide it by "
            "the same number"
        ] = not close(got, [got[0]] * len(got))
    for rank, (replica, truth) in enumerate(zip(got, right)):
        for i, (mine, wanted) in enumerate(zip(replica, truth)):
            yield say(
                f"ten numbers of parameter {i} of replica {rank}",
                mine,
                wanted,
                looks,
                whole=got,
            )


def _loss(say, got, shards):
    """Compare the mean loss of the minibatch."""
    k, losses = len(shards), [shard.loss for shard in shards]
    whole = sum(shard.weight for shard in shards)
    own = [part for l in losses for part in (l, l / whole)]
    means = [shard.loss / shard.weight for shard in shards if shard.weight]
    one = numbers(got)
    of_one = k > 1 and any(close(one, part, 1e-6) for part in own + means)
    of_means = [fmean(means), sum(means) / k]  # of shards with rows, of all
    return say(
        "the mean loss of the minibatch",
        got,
        sum(losses) / whole,
        {
            "this is the sum; divide by the rows, or by the sum of their weights": sum(
                losses
            ),
            "this is the sum, divided by the ranks: divide it by the rows": sum(losses)
            / k,
            "this is the loss of one shard: add up those of all": of_one,
            "this is a mean of means: each shard counts alike, and one without rows "
            "has none, 0 / 0. Add up the losses, and divide once": one != one
            or any(close(one, mean, 1e-6) for mean in of_means),
        },
        1e-6,
    )
