"""Problem set 5, find the bug: broken programs, each with a clue and a repair.

A clue is a row of the chart and its number, or for patients 5 and 10, which have no
chart, a number of the learner's own. A clue and its repair are judged apart: each is
worth a point. Four programs need ranks.
"""

import traceback
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from course.school import linear
from course.school.answers import learners
from course.school.chart import ROWS
from course.school.checks import (
    Partly,
    about,
    close,
    exercise,
    numbers,
    shorten,
    unequal,
)
from course.school.draws import META, SHAPES, forms, moved, rand, summed, tensors
from course.school.ranks import Roll, on_ranks
from manual_dp import try_devices
from manual_dp.ranks import RankError

SECONDS = 40  # that a whole launch has
KS = 2, 4, 3, 5, 1  # for which a clue is asked
GIVES_AWAY = {  # for each patient: row -> the number there at k
    1: {"replicas": lambda k: k},
    2: {"step": lambda k: 2 ** (k - 1)},
    3: {"replicas": lambda k: k, "weight": lambda k: float(k == 1)},
    4: {"orders": lambda k: 1},
    6: {"step": lambda k: (k + 1) / 2, "weight": lambda k: 1 / k},
    7: {"messages": lambda k: 2},
    8: {"messages": lambda k: k},
    9: {"absent": lambda k: k - 1},
}


def _two_points(clue, repair):
    """Yield None, or a message that leaves a point if one of the two is right.

    clue, repair: the messages about them. Each is judged, whatever the other is.
    """
    found = {"clue": _outcome(clue), "repair": _outcome(repair)}
    wrong = [name for name in found if found[name]]
    if not wrong:
        yield None
        return
    wrong.sort(key=lambda name: _is_blank(found[name]))  # a blank one tells least
    what = found[wrong[0]]
    if len(wrong) == 1:
        [right] = found.keys() - set(wrong)
        yield Partly(
            f"1 of 2 points: the {right} is right, the {wrong[0]} is not yet.\n"
            f"{_in_words(what)}",
            points=1,
        )
    elif isinstance(what, Exception):
        raise what
    else:
        yield what


def _outcome(messages):
    """Return None, or the first message, or else the error that the answer raises."""
    try:
        return next(filter(None, messages), None)
    except Exception as error:
        return error


def _is_blank(outcome):
    cause = getattr(outcome, "cause", type(outcome).__name__)  # a rank's, or ours
    return cause == "NotImplementedError"


def _in_words(outcome):
    if not isinstance(outcome, Exception):
        return outcome
    if _is_blank(outcome):
        return "It is not written: its cell still raises NotImplementedError."
    lines = traceback.format_exception(
        type(outcome), outcome, learners(outcome), chain=False
    )
    return "".join(lines).rstrip()


def _clue(patient, clue):
    """Compare a clue with the chart of the broken program."""
    rows = GIVES_AWAY[patient]
    for k in KS:
        said = clue(k)
        two = isinstance(said, (tuple, list)) and len(said) == 2
        row, wanted = (
            said[0] if two else None,
            "a row that is not healthy, and its number",
        )
        known = row in list(rows)  # a row that is a list has no place in a dict
        if known:
            wanted = [row, rows[row](k)]
        yield about(f"clue_{patient}({k})")(
            f"a row of the broken program's chart at k = {k}",
            said,
            wanted,
            {
                "a clue is two things, a row's name and a number": not two,
                f"no such row; there are {', '.join(ROWS)}": row not in list(ROWS),
                "that row tells nothing here: it is as it should be, or goes up and "
                "down for many reasons": not known,
                "the row is right; the number in the chart is another": True,
            },
        )


def _own_number(patient, clue, healthy, broken, hints):
    """Compare the learner's own number of two programs: it is 0 if one is healthy.

    hints(): what to say if it is 0 for the broken one, once that has run.
    """
    one, other = (numbers(clue(program)) for program in (healthy, broken))
    say, far = about(f"clue_{patient}(program)"), isinstance(other, (int, float))
    yield say(
        "its number of a program that is healthy",
        one,
        0,
        {"compare with one device, which has all rows in one shard, in float64": True},
        1e-6,
    )
    yield say(
        f"its number of the broken program is {shorten(other)}; is that at least "
        "0.001 away from 0?",
        far and abs(other) >= 1e-3,
        True,
        hints(),
    )


@exercise("ps5/rebinding", points=2)
def rebinding(random, clue_1, repaired_1):
    """Keep hold of the tensors; look at them and their memory afterwards."""
    return _two_points(_clue(1, clue_1), _repair_1(random, repaired_1))


def _repair_1(random, repaired_1):
    for number in range(8):
        shape = [(4,), (2, 3)][number % 2]
        held = [rand(random, *shape) for _ in range(1 + number // 2)]
        kept = [t.clone() for t in held]
        handed, views = list(kept), [t.detach() for t in kept]
        returned = repaired_1(handed)
        yield from summed(held, kept, handed, returned, views)


@exercise("ps5/aliasing", points=2)
def aliasing(random, clue_2, repaired_2):
    """Ask of the repair what the lesson on replicas asks of get_params."""
    return _two_points(_clue(2, clue_2), _repair_2(random, repaired_2))


def _repair_2(random, repaired_2):
    yield from get_params(random, repaired_2)


@exercise("replicas/get_params")
def get_params(random, get_params):
    """Make replicas, then write into each: who shares memory with whom shows."""
    for k in 3, 2, 4, 1:
        trained = k % 2 == 0  # in the middle of training, or not
        dtype = torch.float32 if k == 2 else torch.float64
        source = [
            rand(random, *shape).to(dtype).requires_grad_(trained) for shape in SHAPES
        ]
        for p in source:
            p.grad = torch.ones_like(p) if trained else None
        before = [p.detach().clone() for p in source]
        kept = _state(source)
        replicas = [
            tensors(get_params(source, device), len(source), "get_params")
            for device in try_devices(k)
        ]
        want = "which want gradients and have some" if trained else "without gradients"
        say = about(f"parameters of shapes {SHAPES}, {want}, world_size {k}")
        yield say(
            "what each tensor of the replicas is",
            [forms(replica) for replica in replicas],
            [forms(before)] * k,
            {"a replica keeps the shape and the dtype of each parameter": True},
        )
        yield say("the replicas", replicas, [before] * k)
        ready = {_ready(p) for replica in replicas for p in replica}
        for rank, replica in enumerate(replicas):
            for p in replica:
                p.detach().add_(10 ** (rank + 1))
        yield say(
            "then the check added 10 to replica 0, 100 to replica 1, ...; the "
            "parameters",
            source,
            before,
            {
                "a replica lies in the parameter's memory: detach() and nn.Parameter "
                "never copy, and .to(device) not on the same device": True
            },
        )
        yield say(
            "and the replicas",
            replicas,
            [[p + 10 ** (rank + 1) for p in before] for rank in range(k)],
        )
        yield say(
            "is every tensor of a replica a leaf that wants a gradient and has "
            "none yet?",
            sorted(ready),
            ["yes"],
            {
                "a copy hangs on the graph of what it was copied from: detach "
                "first": "no leaf" in ready,
                "requires_grad_() is missing: backward would leave no gradient "
                "here": "wants no gradient" in ready,
                "a gradient came along: a fresh replica has none": True,
            },
        )
        yield say(
            "do yours want gradients, which have they, where are they in memory?",
            _state(source),
            kept,
            {"leave the parameters as they are: only their copies are yours": True},
        )
        away = get_params(source, META)  # a device that every machine has
        states = {_ready(p) for p in tensors(away, len(source), "get_params")}
        yield say(
            "on another device (meta, which has no numbers), is every tensor of a "
            "replica a leaf that wants a gradient and has none yet?",
            sorted(states),
            ["yes"],
            {
                "copy to the device first, then call requires_grad_(): what "
                ".to(device) makes of a leaf on another device is no leaf": "no leaf"
                in states
            },
        )
        yield moved(
            get_params,
            (source, META),
            ["meta"] * len(source),
            "detach().to(device, copy=True)",
        )


def _state(params):
    return numbers([[p.requires_grad, p.grad, p.data_ptr()] for p in params])


def _ready(p):
    if not p.is_leaf:
        return "no leaf"
    if not p.requires_grad:
        return "wants no gradient"
    return "yes" if p.grad is None else "has a gradient already"


@exercise("ps5/hook", points=2, seconds=60)
def hook(random, clue_3, repaired_3):
    """Look at the gradients after a backward, and after a second one on top."""
    return _two_points(_clue(3, clue_3), _repair_3(random, repaired_3))


def _repair_3(random, repaired_3):
    def draw(k, number):
        params = [*linear.draw_layer(random), *linear.draw_layer(random, 4)]
        return params, [linear.draw_batches(random, 2, 3) for _ in range(k)]

    def work(rank, params, batches):
        first, last = linear.layer(*params[:2]), linear.layer(*params[2:])
        model = nn.Sequential(first, nn.Tanh(), last)
        model[0].bias.requires_grad_(False)
        repaired_3(model)
        grads = []
        for X, y in linear.cloned(batches[rank]):
            F.cross_entropy(model(X), y).backward()
            grads.append(numbers([p.grad for p in model.parameters()]))
        return grads

    for say, (params, batches), results, came, _ in _on_ranks(3, draw, work):
        yield from _hooked_gradients(say, results, came, params, batches)


def _hooked_gradients(say, results, came, params, batches):
    """Compare the gradients on k ranks after each backward."""
    yield came
    k = len(batches)

    def mean(batches, factor=1):
        grads = [factor * grad for grad in linear.gradients(params, batches)]
        return [grads[0], None, *grads[2:]]  # the first bias is frozen

    first, second = mean([rank[0] for rank in batches]), mean(sum(batches, []), 2)
    both = [p if p is None else p + q for p, q in zip(first, second)]
    sums, after_one = mean([rank[0] for rank in batches], k), [a for a, _ in results]
    yield say(
        "gradients on every rank after one backward and after two, nothing "
        "zeroed in between, None where a parameter is frozen",
        results,
        [[first, second]] * k,
        {
            "every rank has its own gradient: the hook is handed the parameter, "
            "and what it returns is not used": [
                [mean(rank[:1]), mean(rank, 2)] for rank in batches
            ],
            "the first gradient counts twice after the second backward": [[first, both]]
            * k,
            "average after every backward, and all that is in p.grad": close(
                after_one, numbers([first] * k)
            ),
            "this is the sum; the mean is wanted": close(
                after_one, numbers([sums] * k)
            ),
            "rank 0 alone has the mean: all ranks need it": close(
                after_one[0], numbers(first)
            ),
            "each p.grad has to be summed over the ranks once, waited for, and then "
            "divided": True,
        },
    )


@exercise("ps5/set_epoch", points=2)
def set_epoch(random, clue_4, repaired_4):
    """Note the rows that every rank takes a step on, epoch by epoch."""
    return _two_points(_clue(4, clue_4), _repair_4(random, repaired_4))


def _repair_4(random, repaired_4):
    for k, size in (1, 16), (2, 24), (3, 25), (4, 32):
        yield from _deal_epochs(random, repaired_4, k, size)


def _deal_epochs(random, repaired_4, k, size):
    """Note the rows of k ranks, of `size`."""
    dataset, count = random.sample(range(1000), size), 4
    seen = [[[] for _ in range(k)] for _ in range(count)]  # [epoch][rank]
    for rank in range(k):
        repaired_4(list(dataset), rank, k, count, partial(_note_rows, seen, rank))
    say = about(f"repaired_4, {size} rows, world_size {k}, {count} epochs")
    share = -(-size // k)
    orders = [sum(epoch, []) for epoch in seen]
    rows = [list(map(len, epoch)) for epoch in seen]
    in_all = [sum(of_rank) for of_rank in zip(*rows)]
    yield say(
        "rows a rank, in each epoch",
        rows,
        [[share] * k] * count,
        {
            "every rank goes through the whole dataset": [[size] * k] * count,
            "in all there are as many rows as there should be: of which epoch is "
            "`step` told?": in_all == [share * count] * k,
            "rows are left out: is there a drop_last?": max(map(max, rows)) < share,
        },
    )
    yield say(
        "rows that no rank sees, in each epoch",
        [len(set(dataset).difference(order)) for order in orders],
        [0] * count,
        {
            "ranks shuffle with seeds of their own: the seed must be the same for "
            "all": True
        },
    )
    different = len(set(map(tuple, orders)))
    stays = k > 1 and len({tuple(sorted(epoch[0])) for epoch in seen}) == 1
    yield say(
        "different orders; does rank 0 keep the same rows for ever?",
        [different, stays],
        [count, False],
        {
            "two epochs have the same order: the sampler must be told each epoch, "
            "before the loop over the loader": different < count,
            "shuffle all rows, then deal them out: these were dealt out first": True,
        },
    )


def _note_rows(seen, rank, epoch, batch):
    """Stand for a step: note on which rows this rank takes it."""
    seen[epoch][rank] += numbers(batch)


@exercise("ps5/mean_of_means", points=2)
def mean_of_means(random, clue_5, repaired_5):
    """Ask for the gradient over all shards, twice at the same weights."""
    return _two_points(_clue_5(clue_5), _repair_5(random, repaired_5))


def _of_all_rows(X_shards, y_shards, W):
    loss = F.cross_entropy(torch.cat([*X_shards]) @ W, torch.cat([*y_shards]))
    return torch.autograd.grad(loss, W)[0]


def _mean_of_means(X_shards, y_shards, W):
    grads = [_of_all_rows([X], [y], W) for X, y in zip(X_shards, y_shards)]
    return sum(grads) / len(grads)


def _clue_5(clue_5):
    uneven, apart = [], []  # of each call: have its shards several sizes? How far off?

    def broken(X_shards, y_shards, W):
        grad = _mean_of_means(X_shards, y_shards, W)
        off = grad - _of_all_rows(X_shards, y_shards, W)
        uneven.append(len(set(map(len, y_shards))) > 1)
        apart.append(off.abs().max().item())
        return grad

    def hints():
        most = max(apart, default=0)
        return {
            "the program is not run: hand it shards of yours": not uneven,
            "in shards of one size every row counts the same, here, too": not any(
                uneven
            ),
            f"it was off by {most:.3f} on your shards, but your number hides that: in "
            "a sum or a mean, what is above 0 and what is below it may cancel; take "
            "abs() first": most >= 1e-3,
            "it is hardly off on your rows: choose others": most < 1e-3,
        }

    yield from _own_number(5, clue_5, _of_all_rows, broken, hints)


def _repair_5(random, repaired_5):
    for sizes in [4, 3], [5, 5, 2], [2, 2, 1, 0], [3, 1], [4, 4, 4, 1], [5]:
        W = rand(random, 3, 4).requires_grad_()
        X, y = linear.draw_batch(random, sum(sizes))
        shards = [part.split(sizes) for part in (X.clone(), y.clone())]
        right, means = (
            program(*shards, W) for program in (_of_all_rows, _mean_of_means)
        )
        grad, again = (numbers(repaired_5(*shards, W)) for _ in range(2))
        say = about(f"repaired_5, shards of {sizes} rows, random labels")
        yield say(
            "the gradient",
            grad,
            right,
            {
                "this is still the mean of the shards' means": means,
                "this is the sum over all rows": right * len(X),
            },
        )
        yield say(
            "the gradient, asked a second time at the same W",
            again,
            right,
            {
                "backward adds to W.grad, and what was there counts too: "
                "torch.autograd.grad leaves it alone": True
            },
        )


@exercise("ps5/stale_gradients", points=2)
def stale_gradients(random, clue_6, repaired_6):
    """Train a linear model on microbatches, two steps of several."""
    return _two_points(_clue(6, clue_6), _repair_6(random, repaired_6))


def _repair_6(random, repaired_6):
    for n, kind in zip((2, 3, 4, 1), linear.KINDS):
        yield from _steps_of_microbatches(random, repaired_6, n, kind)


def _steps_of_microbatches(random, repaired_6, n, kind):
    """Take two steps of n microbatches."""
    lr, params = random.uniform(0.2, 1), linear.draw_layer(random)
    batches = linear.draw_batches(random, 2 * n, 2)
    model, steps = linear.layer(*params), [batches[:n], batches[n:]]
    rule = linear.optimizer(kind, model.parameters(), lr)
    forwards = linear.Forwards(model)
    with forwards:
        repaired_6(model, rule, linear.cloned(batches), n)

    def after(factor):
        return linear.descend(params, steps, lr * factor, kind)[-1]

    say = about(f"repaired_6, two steps of {n} microbatches, {kind}, {lr=:.3f}")
    hints = linear.STEPPED
    if kind == "SGD":
        hints = {
            f"steps are {n} times too large: the mean over {n} microbatches is "
            "wanted": after(n),
            "gradients go into more than one step, or are lost: one step and one "
            "zero_grad for every group": True,
        }
    yield say("the model afterwards", list(model.parameters()), after(1), hints)
    yield from linear.one_by_one(say, 2, [forwards.seen])


@exercise("ps5/double_averaging", points=2, seconds=60)
def double_averaging(random, clue_7, repaired_7):
    """Train a model that each rank has drawn for itself."""
    return _two_points(_clue(7, clue_7), _repair_7(random, repaired_7))


def _repair_7(random, repaired_7):
    def draw(k, number):
        return (
            random.uniform(0.2, 1),
            [linear.draw_layer(random) for _ in range(k)],
            [linear.draw_batches(random, 2, 3) for _ in range(k)],
        )

    def work(rank, lr, params, batches):
        model = linear.layer(*params[rank])
        repaired_7(model, linear.cloned(batches[rank]), lr)
        return list(model.parameters())

    for say, problem, got, came, sent in _on_ranks(7, draw, work):
        yield came
        yield _trained_alike(say, got, *problem)
        yield sent


def _trained_alike(say, got, lr, params, batches):
    """Compare the model on every rank, which all had their own `params` at first."""
    k, steps = len(batches), [*zip(*batches)]
    mean = [sum(same) / k for same in zip(*params)]

    def after(steps, start=params[0], factor=1):
        return [linear.descend(start, steps, lr * factor)[-1]] * k

    first, second = linear.descend(params[0], steps, lr)
    not_cleared = [[b + a - p for p, a, b in zip(params[0], first, second)]] * k
    return say(
        f"two steps with lr {lr:.3f}; the model on every rank",
        got,
        after(steps),
        {
            f"steps are {k} times too small: DDP's mean was divided again": after(
                steps, factor=1 / k
            ),
            f"steps are {k} times too large: the mean over ranks is wanted": after(
                steps, factor=k
            ),
            "the gradient of the first step is in the second, too: clear "
            "it": not_cleared,
            "rank 0 has learned from its own rows alone: average the gradients in "
            "each step": after([[batch] for batch in batches[0]]),
            "this begins with the mean of all ranks' weights: rank 0's are "
            "wanted": after(steps, mean),
            "these are each rank's first weights: is it `model` that you "
            "train?": params,
            "replicas differ: who gives all ranks rank 0's weights, and who "
            "averages?": unequal(got),
        },
    )


@exercise("ps5/no_sync", points=2, seconds=60)
def no_sync(random, clue_8, repaired_8):
    """Take steps of several microbatches each with a model in DDP."""
    return _two_points(_clue(8, clue_8), _repair_8(random, repaired_8))


def _repair_8(random, repaired_8):
    def draw(k, number):
        kind, count = "SGD" if k == 2 else linear.KINDS[2 + number], (1, 3)[number]
        lr, params = random.uniform(0.2, 1), linear.draw_layer(random)
        steps = []
        for _ in range(k):
            steps.append([linear.draw_batches(random, count, 2) for _ in range(2)])
        return kind, lr, params, steps

    def work(rank, kind, lr, params, steps):
        model = DDP(linear.layer(*params))
        rule = linear.optimizer(kind, model.parameters(), lr)
        forwards, watch = linear.Forwards(model), []
        for microbatches in steps[rank]:
            with forwards:
                repaired_8(model, rule, linear.cloned(microbatches))
            watch.append(forwards.seen)
        return list(model.parameters()), watch

    for say, (kind, lr, params, steps), results, came, sent in _on_ranks(8, draw, work):
        yield from _synchronized_steps(
            say, results, came, sent, kind, lr, params, steps
        )


def _synchronized_steps(say, results, came, sent, kind, lr, params, steps):
    """Compare the model on every rank, and what was sent and held meanwhile."""
    yield came
    (got, watch), count = zip(*results), len(steps[0][0])

    def after(factor):
        batches = [sum(step, []) for step in zip(*steps)]
        return [linear.descend(params, batches, lr * factor, kind)[-1]] * len(steps)

    hints = linear.STEPPED
    if kind == "SGD":
        hints = {
            f"steps are {count} times too large: the mean over the microbatches is "
            "wanted": count > 1 and after(count),
            "replicas differ: the last microbatch must send": unequal(got),
        }
    yield say(
        f"two steps of {kind} with {count} microbatches, lr {lr:.3f}; the "
        "model on every rank",
        got,
        after(1),
        hints,
    )
    yield sent
    yield from linear.one_by_one(say, 2, sum(watch, []))


@exercise("ps5/rank_zero_only", points=2, seconds=60)
def rank_zero_only(random, clue_9, repaired_9):
    """Ask every rank for the accuracy; keep what each of them returns."""
    return _two_points(_clue(9, clue_9), _repair_9(random, repaired_9))


def _repair_9(random, repaired_9):
    def draw(k, number):
        sizes = ([9, 4, 6], [7, 0, 5])[number][:k]
        batch = linear.draw_batch(random, sum(sizes), 3)
        return linear.draw_layer(random, outputs=3), batch, sizes

    def work(rank, params, batch, sizes):
        X, y = (part.clone().split(sizes)[rank] for part in batch)
        return repaired_9(linear.layer(*params), X, y)

    for say, ((W, b), (X, y), sizes), got, came, _ in _on_ranks(9, draw, work):
        yield came
        right = ((X @ W.T + b).argmax(1) == y).double()
        parts = [part.mean() for part in right.split(sizes) if len(part)]
        own_rows = [right.sum() / (sizes[0] * times) for times in (1, len(sizes))]
        yield say(
            f"{sizes} rows; the accuracy on rank 0",
            got[0],
            right.mean(),
            {
                "this counts rank 0's rows only": parts[0],
                "this is the mean of the ranks' accuracies; their rows differ in "
                "number": sum(parts) / len(sizes),
                "the right ones are those of all ranks, the rows are rank 0's: sum "
                "up both": any(close(got[0], n.item(), 1e-6) for n in own_rows),
            },
            1e-6,
        )  # torch divides integers in float32


@exercise("ps5/adam_hides", points=2)
def adam_hides(random, clue_10, repaired_10):
    """Take two steps, with SGD and others; compare the model after each."""
    return _two_points(_clue_10(clue_10), _repair_10(random, repaired_10))


def _added(model, optimizer, X_shards, y_shards, count=1):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y) / count).backward()
    optimizer.step()


def _clue_10(clue_10):
    steps = []  # of each call: is it SGD, of how many shards, how much is too long?

    def healthy(model, optimizer, X_shards, y_shards):
        _added(model, optimizer, X_shards, y_shards, len(X_shards))

    def broken(model, optimizer, X_shards, y_shards):
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        _added(model, optimizer, X_shards, y_shards)
        moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        of_sgd, count = isinstance(optimizer, torch.optim.SGD), len(X_shards)
        too_long = moved.abs().max().item() * (1 - 1 / count)
        steps.append((of_sgd, count, too_long))

    def hints():
        several = [step for step in steps if step[1] > 1]
        most = max((too_long for of_sgd, _, too_long in several if of_sgd), default=0)
        return {
            "the program is not run: hand it a model, an optimizer and shards of "
            "yours": not steps,
            "on one shard the sum is the mean: take several": not several,
            "Adam hides it: take a step of SGD": not any(step[0] for step in several),
            f"a step was too long by {most:.3f}, but your number hides that: compare "
            "the weights after it, with abs(): in a sum or a mean, what is above 0 and "
            "what is below it may cancel": most >= 1e-3,
            "the step is too short to tell: take a larger rate": most < 1e-3,
        }

    yield from _own_number(10, clue_10, healthy, broken, hints)


def _repair_10(random, repaired_10):
    for k, kind in zip((2, 3, 4, 1), linear.KINDS):
        lr, params = random.uniform(0.2, 1), linear.draw_layer(random)
        steps = [linear.draw_batches(random, k, 3) for _ in range(2)]
        model, got = linear.layer(*params), []
        rule, rates = linear.optimizer(kind, model.parameters(), lr), []
        rule.register_step_pre_hook(
            lambda rule, *_, rates=rates: rates.append(_rate(rule))
        )
        for shards in steps:
            repaired_10(model, rule, *map(list, zip(*linear.cloned(shards))))
            got.append(numbers(list(model.parameters())))
        right, long = (
            linear.descend(params, steps, factor * lr, kind) for factor in (1, k)
        )
        say = about(f"repaired_10, {k} shards, two steps of {kind}, {lr=:.3f}")
        hints = {
            "the rate is not the patient: leave it as it is": bool({*rates} - {lr}),
            f"these are {len(rates)} steps of the optimizer in two calls: take one in "
            "each, after all shards": len(rates) > 2,
        }
        if kind == "SGD":
            hints |= {
                f"the steps are {k} times as long as they should be": long,
                "the first step is right, the second is not: has it gradients of the "
                "first?": close(got[0], numbers(right[0])),
                "each shard's gradient counts 1 / k: add up all of them, and divide "
                "once": True,
            }
        else:
            hints |= linear.STEPPED
        yield say("the model after each", got, right, hints)


def _rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def _on_ranks(patient, draw, work):
    """Run a repair on 2 and on 3 ranks, on two problems each.

    draw(k, number) returns a problem, work(rank, *problem) is called on every rank.
    Yields what compares, the problem, the ranks' results, and two messages or None: are
    all ranks at all collectives, and is no more sent than is needed?
    """
    for k in 2, 3:
        yield from _on_k_ranks(patient, draw, work, k)


def _rolled(roll, work, problem):
    """Return this rank's result, how many ranks it missed, how much it sent."""
    result = roll.call(work, dist.get_rank(), *problem)
    return result, roll.absent, sum(roll.sizes())


def _ended_by_gloo(say, error):
    """Return the message about ranks that gloo has ended."""
    return say(
        "what happened on the ranks",
        f"no result: {error}",
        "a result",
        {
            "gloo ends a rank that gets another tensor than it waits for: a collective "
            "takes tensors of one size and dtype on all ranks": True
        },
    )


def _on_k_ranks(patient, draw, work, k):
    """Run a repair on k ranks: see `_on_ranks`."""
    problems = [draw(k, number) for number in range(2)]

    def all_problems():
        with Roll() as roll:
            return [_rolled(roll, work, problem) for problem in problems]

    say = about(f"repaired_{patient}, {k} ranks")
    try:
        found = on_ranks(all_problems, k, SECONDS)
    except RankError as error:
        if "SIGABRT" not in str(error):
            raise
        yield say, problems[0], None, _ended_by_gloo(say, error), None
        return
    for problem, ranks in zip(problems, zip(*found)):
        results, absent, sent = zip(*ranks)
        yield (
            say,
            problem,
            results,
            say(
                "ranks missing at a collective that others wait in",
                max(absent),
                0,
                {"a collective stands where not every rank comes by": True},
            ),
            say(
                "two steps, gradients of 16 numbers; numbers handed to "
                "all-reduces, by rank",
                sent,
                [32] * k,
                {"numbers are sent that nobody needs": min(sent) > 32},
            ),
        )
