"""Exercises of lessons: what is held in memory, in 16 bits, or on one rank alone."""

from contextlib import contextmanager
from functools import partial
from math import nan
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn

from course.school.checks import (
    about,
    close,
    exercise,
    numbers,
    remember,
    so_many,
)
from course.school.draws import rand
from course.school.ranks import WAITED, attempt, failed, noting

LONGER = 20  # their first optimizer imports torch's compiler


@exercise("memory/recompute")
def recompute(random, recompute):
    """Let it train layers that note their runs; compare gradients, then memory."""
    every, width = random.sample((3, 4), 2), random.randint(3, 5)
    for turn, size in enumerate(every):
        n = 4 * size + (0 if turn == 0 else random.randint(1, size - 1))
        yield from _recomputed(random, recompute, n, size, width, turn == 1)


class _Noted(nn.Module):
    """A layer that notes its runs in a list which it shares with the others.

    A run is (number of the layer, are gradients on?, outputs of layers in memory).
    """

    def __init__(self, i, weight, runs, outputs):
        super().__init__()
        self.i, self.runs, self.outputs = i, runs, outputs
        self.weight = nn.Parameter(weight)

    def forward(self, X):
        self.runs.append((self.i, torch.is_grad_enabled(), len(self.outputs)))
        y = torch.tanh(X @ self.weight)
        self.outputs.add(y.untyped_storage())
        return y


def _recomputed(random, recompute, n, every, width, before):
    """Compare what is done for n layers, with a kept input for each `every`."""
    runs, outputs = [], WeakSet()
    layers = nn.Sequential(
        *[_Noted(i, rand(random, width, width), runs, outputs) for i in range(n)]
    )
    X = rand(random, 2 * width, width)
    y = torch.tensor([random.randrange(width) for _ in X])
    weights = list(layers.parameters())
    loss = nn.functional.cross_entropy(layers(X), y)
    own = torch.autograd.grad(loss, weights)
    del loss
    runs.clear()
    old = [torch.ones_like(p) if before else torch.zeros_like(p) for p in weights]
    for p, grad in zip(weights, old):
        p.grad = grad.clone() if before else None
    say = about(f"{n} layers, every {every}" + ", and ones in each p.grad" * before)
    same, segments = remember(X=X, y=y), -(-n // every)
    wanted = [grad + was for grad, was in zip(own, old)]
    try:
        recompute(layers, X, y, every)
    except RuntimeError as error:
        hints = {
            "a segment's output is no single number: give backward() the gradient "
            "of this output, the .grad of the input of the segment behind it, "
            "which must ask for one, with requires_grad_()": "implicitly" in str(error),
            "nothing here asks for a gradient: call requires_grad_() on the input, and "
            "run what is to get gradients outside of no_grad()": "does not require grad"
            in str(error),
        }
        if not any(hints.values()):
            raise
        yield say(
            "the gradients of the weights", f"RuntimeError: {error}", wanted, hints
        )
        return
    got = [p.grad for p in weights]
    last = every * (segments - 1)  # where the last segment begins
    as_sum = [len(X) * grad + was for grad, was in zip(own, old)]
    yield say(
        "the gradients of the weights",
        got,
        wanted,
        {
            "no weight has a gradient: run each segment again, with gradients, and "
            "call backward": [None] * n,
            "the last layers never ran: the last segment may be shorter": n - 1
            not in [i for i, *_ in runs],
            "backward() adds to what is in p.grad: this took the place of it": before
            and close(numbers(got), numbers(list(own))),
            "the last segment is right, those before it are not: from the last to "
            "the first, each begins with the .grad of the input of the segment behind "
            "it": close(numbers(got[last:]), numbers(wanted[last:])),
            "cross_entropy takes the mean over the rows, not their sum": as_sum,
            "begin with the last segment, whose output goes into cross_entropy": last
            not in [i for i, on, _ in runs if on][:1],
            "run each segment from its own input, which the first forward has "
            "kept": True,
        },
    )
    yield from same(say)
    yield _run_again(say, runs, n)
    yield _kept(say, runs, n, segments, every)


def _run_again(say, runs, n):
    """Compare how often each layer ran: twice, or once if it was among the last."""
    often = [sum(i == layer for i, *_ in runs) for layer in range(n)]
    return say(
        "how often each layer ran, if more than twice",
        [max(2, times) for times in often],
        [2] * n,
        {
            "twice is enough: keep the input of each segment, and begin there, not "
            "at X": True
        },
    )


def _kept(say, runs, n, segments, every):
    """Compare how many outputs of layers were in memory at the fullest moment."""
    most = (
        segments + every + 1
    )  # inputs, a segment's insides, and two that stay a while
    alive = max(count for *_, count in runs)
    first = next((count for _, on, count in runs if on), 0)
    return say(
        f"outputs of layers in memory at one time, if more than {most}",
        max(alive, most),
        most,
        {
            "gradients were on in the first forward, so that torch kept what is inside "
            "of all layers: with torch.no_grad()": runs[0][1],
            "keep the input of each segment, not of each layer": first > segments + 1,
            "all segments ran again before the first backward: call backward for one, "
            "then run the one before it": True,
        },
    )


@exercise("sixteen_bits/scaler")
def scaler(random, MyScaler):
    """Take good steps, and such as must be skipped; look at scale and weights."""
    every, scale, was, good = random.randint(2, 3), 2.0 ** random.randint(8, 12), 0, 0
    a, b, unused = (nn.Parameter(rand(random, 2)) for _ in range(3))
    rule, mine = torch.optim.SGD([unused, a, b], 0.1, 0, 0, 0.5), MyScaler(scale, every)
    for step, bad in enumerate([0, 1e308, 0, 0, nan] + [0] * (2 * every + 1), 1):
        gradient = f"a gradient of {bad}" if bad else "a gradient"
        say = about(f"every {every}, step {step}, {gradient}")
        yield say(
            "scale(1)",
            mine.scale(torch.ones(())),
            scale,
            {
                "scale(loss) returns the loss times the factor": was == 0,
                "a skipped step halves the scale, and never doubles it": scale < was,
                "after `every` good steps in a row, double the scale": scale > was,
                "count anew after a skipped step, and after doubling": True,
            },
        )
        grad = rand(random, 2, 2)
        grad[step % 2] += bad  # of one weight alone: first of a, then of b
        old, was, a.grad, b.grad = torch.stack([a, b]).detach(), scale, None, None
        mine.scale((torch.stack([a, b]) * grad).sum()).backward()
        mine.step(rule)
        right, got = old, torch.stack([a, b])
        if bad:
            good, scale = 0, scale / 2
        else:
            right, good = old - 0.1 * (grad + 0.5 * old), good % every + 1
            scale *= 2 if good == every else 1
        spoiled = not got.isfinite().all()
        yield say(
            "the weights after the step",
            got,
            right,
            {
                "skip, if any gradient is not isfinite()": spoiled,
                "weight decay moves weights, too: to skip, do not call step()": bad
                != 0,
                "divide the gradients by the factor that `scale` has used, then let "
                "the optimizer step": True,
            },
        )


@exercise("keep_only_a_part/step", seconds=60)
def stage1_step(random, step):
    """Take a step of SGD with rate 1 from weights that are zero."""

    def work(own):
        grad, flat = own[dist.get_rank()].clone(), torch.zeros_like(own[0])
        grads, weights = list(grad.chunk(len(own))), list(flat.chunk(len(own)))
        shard = nn.Parameter(weights[dist.get_rank()])
        rule = torch.optim.SGD([shard], lr=1.0)
        with _numbers_sent() as sent:
            step(weights, grads, shard, rule)
        left = (grad if shard.grad is None else shard.grad).untyped_storage()
        new = left.data_ptr() != grad.untyped_storage().data_ptr()
        return -flat, new, sum(sent) / len(grads[0])

    for k in 3, 2:
        yield from _moved(random, work, k)


@contextmanager
def _numbers_sent():
    """Yield a list; what a collective makes this rank send in the block is added to it.

    Where torch chooses the way, it is a ring's, the shortest.
    """
    sent, others = [], 1 - 1 / dist.get_world_size()
    costs = {  # which argument is looked at, and how often its numbers are sent
        "isend": (0, 1),
        "send": (0, 1),
        "all_reduce": (0, 2 * others),
        "reduce": (0, others),
        "broadcast": (0, others),
        "reduce_scatter": (1, others),
        "reduce_scatter_tensor": (1, others),
        "all_gather": (0, others),
        "all_gather_into_tensor": (0, others),
    }

    def note(name, *args, **kwargs):
        place, times = costs[name]
        handed = [*args, *kwargs.values()][place]
        parts = handed if isinstance(handed, (list, tuple)) else [handed]
        sent.append(times * sum(part.numel() for part in parts))

    with noting(note, costs):
        yield sent


def _moved(random, work, k):
    """Compare what work(gradients) returns on k ranks: moves, what is left, is sent."""
    what = "how far the weights moved on each rank"
    own = rand(random, k, 8 + k % 2)
    own[:, 8:] = 0  # with 3 ranks, what fills up the last chunk
    results, error = attempt(partial(work, own), k, LONGER)
    say, parts = about(so_many(k, "rank")), own.chunk(k, 1)
    yield failed(
        so_many(k, "rank"),
        error,
        what,
        {
            "this is no chunk of all gradients, with zeros at the end: `shard` has "
            "another size": "assign a gradient of size",
            "all ranks must call the same collectives, in one order": WAITED,
        },
    )

    def every(chunks):
        return [torch.cat(chunks)] * k

    sums, means = [part.sum(0) for part in parts], [part.mean(0) for part in parts]
    zeros = [0 * mean for mean in means]
    only_new = [torch.cat([*zeros[:i], means[i], *zeros[i + 1 :]]) for i in range(k)]
    chunks = [part[rank] for rank, part in enumerate(parts)]
    own_chunks = every(chunks), every([chunk / k for chunk in chunks])
    found, kept, sent = zip(*results)
    not_summed = any(close(found, numbers(one)) for one in own_chunks)
    of_rank_0 = torch.cat([means[0], *zeros[1:]])
    size = len(means[0])
    some = any(
        close(numbers(one)[i * size :][:size], numbers(mean))
        for one in found
        for i, mean in enumerate(means)
    )
    yield say(
        what,
        found,
        every(means),
        {
            "all are zero: optimizer.step() updates shard from shard.grad; and "
            "make the gradients flat, not the weights": every(zeros),
            "each rank's own chunk is new, the others are old: the ranks must give "
            "one another what is new, after the update": only_new,
            "a sum is not a mean: divide by the number of ranks": every(sums),
            "each rank uses its own gradient: sum over the ranks first": not_summed,
            "only rank 0's chunk is new: each rank updates its own, and gives it to "
            "the others": every([of_rank_0]),
            "rank r has the finished sum of chunk r alone": some,
        },
    )
    yield say(
        "is more left in memory than was asked for?",
        kept,
        [False] * k,
        {"a copy of the chunk is left in shard.grad: divide in place": True},
    )
    most = 2 * (k - 1)  # chunks go round the ring twice
    yield say(
        f"chunks that a rank sends, of the {most} that are needed",
        [max(most, round(chunks, 3)) for chunks in sent],
        [most] * k,
        {
            "an all-reduce gives every rank all sums, which is twice as much to send: "
            "reduce_scatter gives each the chunk that it needs": True
        },
    )
