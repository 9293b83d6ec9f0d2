"""Problem set 8: steps in mixed precision, local and late ones; what ranks share."""

import tempfile
import time
from math import ceil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

from course.school.checks import about, exercise, numbers, shorten, unequal
from course.school.draws import generator, rand
from course.school.linear import averaged, draw_batches, draw_layer, gradients, layer
from course.school.ps6 import ddp_steps
from course.school.ranks import Roll, calls_of_collectives, on_ranks

SECONDS = 40  # that all ranks have
BOUNDS = 1e9, 0.02, 1e9, 0.02  # on the norm, in four steps; the third overflows
TEXT = "first half, second half"


@exercise("ps8/train_step_amp", points=4, seconds=60, cases=[3, 1])
def train_step_amp(random, train_step_amp, *, k):
    """Take a plain step, a clipped one, one that overflows, and one more."""
    steps = []  # for each the microbatches of every rank
    for count in (3, 2, 2, 1):
        steps.append([draw_batches(random, count, 1, 5) for _ in range(k)])
    lr, params, first = random.uniform(0.3, 1), draw_layer(random), 2.0**15
    X, y = steps[2][-1][0]  # the scaled gradient of its first row is infinite
    X[0] = 1e307 * X[0].sign()
    y[0] = (params[0] @ X[0]).argmin()

    def work():
        scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=2)
        net, after = layer(*params, grad=params[0]), []  # an old gradient

        def step(model, microbatches, rows, rule):
            given = microbatches, rows, rule, scaler, BOUNDS[len(after)]
            train_step_amp(model, F.cross_entropy, *given)
            after.append([numbers(list(model.parameters())), scaler.get_scale()])

        seen = ddp_steps(net, torch.optim.SGD(net.parameters(), lr), steps, step)
        return [
            [own, one["averaged"], one["others"], scale]
            for (own, scale), one in zip(after, seen)
        ]

    scales = first, first, 2 * first, first, first  # before each step, at the end
    for number, results in enumerate(zip(*on_ranks(work, k, SECONDS))):
        (got, *others), bound = zip(*results), BOUNDS[number]
        given = sum(steps[number], []), lr, params
        right = params if number == 2 else _moved(*given, bound)
        small = [_moved(*given, bound, 1 / k)] * k
        scaled = [_moved(*given, bound / scales[number])] * k
        say = about(f"{k} ranks, lr {lr:.3f}, max_norm {bound}, step {number + 1}")
        yield say(
            "the parameters on each rank",
            got,
            [right] * k,
            {
                "a scaled gradient is too large for a number, so this step must be "
                "skipped: scaler.step(optimizer) does so": number == 2,
                "replicas differ: the last forward and backward stand outside of "
                "no_sync, and the step comes after them": unequal(got),
                "DDP takes the mean over ranks: a sum needs the factor "
                "world_size": small,
                "the gradient is not clipped": [_moved(*given, BOUNDS[0])] * k,
                "this was clipped while scaled: first "
                "scaler.unscale_(optimizer)": scaled,
                "one step: the mean of all rows, no old gradients, clipped by one "
                "norm": True,
            },
            1e-5 if number else 1e-9,  # clipping adds 1e-6 to the norm
        )
        yield say(
            "DDP's averages, other messages, the scale afterwards",
            others,
            [[1] * k, [0] * k, [scales[number + 1]] * k],
            {
                "DDP averages once, in the last backward: no_sync goes around "
                "forward and backward of all others": others[0] != (1,) * k,
                "call scaler.update() once at the end of each step": True,
            },
        )
        params = right


def _moved(batches, lr, params, bound, factor=1):
    """Return the parameters after a step whose gradient is clipped to a bound."""
    rows = sum(len(y) for _, y in batches)
    grads = gradients(params, batches, [factor / rows] * len(batches))
    norm = torch.cat([grad.flatten() for grad in grads]).norm().item()
    return [p - lr * min(1, bound / norm) * grad for p, grad in zip(params, grads)]


@exercise(
    "ps8/local_sgd",
    points=3,
    seconds=60,
    cases=[(2, 3, 5), (3, 2, 6), (2, 1, 3), (1, 2, 3)],
)
def local_sgd(random, local_sgd, *, k, every, steps):
    """Train a model of its own on every rank; note when there are messages."""
    starts, lr = [draw_layer(random) for _ in range(k)], random.uniform(0.2, 0.6)
    batches = [draw_batches(random, steps, 3, 6) for _ in range(k)]

    def work():
        model, before = layer(*starts[dist.get_rank()]), []
        with calls_of_collectives() as calls:
            model.register_forward_pre_hook(lambda *_: before.append(len(calls)))
            local_sgd(model, batches[dist.get_rank()], lr, every)
        return list(model.parameters()), before

    got, before = zip(*on_ranks(work, k, SECONDS))
    same = starts[:1] * k
    say = about(f"{k} ranks, {steps} batches each, every = {every}, lr {lr:.3f}")
    yield say(
        "the weights on each rank",
        got,
        _trained(same, batches, lr, every),
        {
            "the ranks begin with different weights: first give all of them rank "
            "0's": _trained(starts, batches, lr, every),
            "this is an average in every step: here each rank takes steps of its "
            "own": _trained(same, batches, lr, 1),
            "the ranks end with different weights: average after the last step, "
            "too": unequal(got),
            f"take the mean after steps {every}, {2 * every}, ..., counted from 1, "
            "and after the last": True,
        },
    )
    yield say(
        "steps after which a rank communicates, and need not",
        [_needless(calls, every) for calls in before],
        [[]] * k,
        {"communicate only when an average is due: local SGD saves messages": True},
    )


def _needless(calls, every):
    """Return the steps after which a rank communicates though no average is due.

    calls: how many calls of collectives there were before each step.
    """
    steps = range(1, len(calls))
    return [i for i in steps if i % every and calls[i] > calls[i - 1]]


def _trained(params, batches, lr, every):
    """Return every rank's parameters after its own steps and the averages."""
    last = len(batches[0])
    return averaged(params, batches, lr, lambda i: i % every == 0 or i == last)


@exercise("ps8/replay", points=3, cases=[2, 3, 4, 1])
def replay(random, replay, *, k):
    """Replay events of ranks whose gradients pull at the weights."""
    w0, goals, lr = rand(random, 3), rand(random, k, 3), random.uniform(0.05, 0.3)
    events = [
        *(("read", rank) for rank in range(k)),
        *((random.choice(["read", "write"]), random.randrange(k)) for _ in range(12)),
        *[("write", 0)] * 2,
    ]  # the second one on an old copy

    def gradient(rank, w):
        return (rank + 1) * (w - goals[rank])

    handed = w0.clone()
    w, staleness = replay(list(events), gradient, handed, lr)
    right, late = _replayed(events, gradient, w0, lr)
    say = about(f"w0 {shorten(w0)}, lr {lr:.3f}, events {events}")
    yield say("w0, which nobody should change, afterwards", handed, w0)
    yield say(
        "the weights at the end",
        w,
        right,
        {
            "the gradient is that at the rank's copy, not at the newest "
            "weights": _replayed(events, gradient, w0, lr, fresh=True)[0],
            "a write is one step, at what its rank has read last; it is no read": True,
        },
    )
    yield say(
        "the staleness of each write",
        staleness,
        late,
        {
            "the own write counts, too: only those between the read and the write do": [
                number + 1 for number in late
            ],
            "count all ranks' writes since the rank's last read": True,
        },
    )


def _replayed(events, gradient, w, lr, fresh=False):
    """Return weights and staleness; fresh is a mistake."""
    held, staleness = {}, []
    for kind, rank in events:
        if kind == "read":
            held[rank] = w, len(staleness)
        else:
            old, then = held[rank]
            w = w - lr * gradient(rank, w if fresh else old)
            staleness.append(len(staleness) - then)
    return w, staleness


@exercise("ps8/schedule_steps", points=2)
def schedule_steps(random, schedule_steps):
    """Ask for the steps of schedules that do not divide."""
    ends = (5, 5000), (8, 64), (1, 8), (1, 5), (1, 9)
    schedules = [tuple(random.randint(*pair) for pair in ends) for _ in range(12)]

    def steps(count):
        return [count(*schedule) for schedule in schedules]

    yield about(f"(rows, batch_size, world_size, accumulate, epochs) = {schedules}")(
        "the steps",
        steps(schedule_steps),
        steps(lambda n, b, k, a, e: ceil(ceil(ceil(n / k) / b) / a) * e),
        {
            "batch_size is that of each rank: a step takes world_size times as many "
            "rows": steps(lambda n, b, k, a, e: ceil(ceil(n / b) / a) * e),
            "these are batches: with accumulation a step takes several": steps(
                lambda n, b, k, a, e: ceil(ceil(n / k) / b) * e
            ),
            "each epoch: a rank's rows, its batches, their steps, all rounded up": True,
        },
    )


@exercise("ps8/epoch_loss", points=2, seconds=60, cases=[2, 3, 4, 1])
def epoch_loss(random, epoch_loss, *, k):
    """Ask each rank for the mean loss; of four ranks, one has no rows."""
    counts = [
        torch.randint(1, 9, (size,), generator=generator(random))
        for size in random.sample(range(4) if k == 4 else range(1, 5), k)
    ]
    sums = [own * (rand(random, len(own)) + 2) for own in counts]

    def work():
        own = sums[dist.get_rank()], counts[dist.get_rank()]
        with Roll() as roll:
            return roll.call(epoch_loss, *own), roll.absent

    means, absent = zip(*on_ranks(work, k, SECONDS))
    mean = torch.cat(sums).sum() / torch.cat(counts).sum()
    say = about(f"{k} ranks with minibatches of {shorten(counts)} rows")
    yield say(
        "ranks missing at a collective",
        max(absent),
        0,
        {"a collective is for all ranks: call it on every rank, print on one": True},
    )
    yield say(
        "the mean loss on each rank",
        means,
        [mean] * k,
        {
            "every rank has the mean of its own rows": [
                one.sum() / count.sum() for one, count in zip(sums, counts)
            ],
            "this is no mean over all rows: add up sums, and counts": True,
        },
    )


@exercise("ps8/once", points=3, seconds=60)
def once(random, once):
    """Have three ranks ask for a file four times; one is late, two downloads fail."""
    situations = [  # name of the file, what the download raises, is the file there?
        ("good", None, False),
        ("good", None, True),
        ("bad", RuntimeError("a full disk"), False),
        ("mute", TimeoutError(), False),
    ]
    with tempfile.TemporaryDirectory() as folder:

        def work():
            with Roll() as roll:
                return [
                    _asked(roll, once, Path(folder, name), error)
                    for name, error, _ in situations
                ]

        results = on_ranks(work, 3, SECONDS)
    for (name, error, again), found in zip(situations, zip(*results)):
        calls, _, files, absent = zip(*found)
        does, ends = "works", ["none", TEXT, 0]
        if error:
            does, ends = f"raises {error!r}", ["rank 0's words", None, 0]
        there, downloads = ("a", 0) if again else ("no", 1)
        yield about(f"3 ranks; there is {there} file; the download {does}")(
            "each rank's downloads, error, file, and ranks that it missed",
            found,
            [[downloads, *ends], [0, *ends], [0, *ends]],
            {
                "rank 0 has failed, the others wait: tell them": error and any(absent),
                "a file that is there is not downloaded again": again and any(calls),
                "half a file is left there: download to another name, then "
                "os.replace": files[0] == TEXT[:10],
                "an error may have no words: is the error None?": name == "mute",
                "rank 0 downloads, others wait; all return, or raise its words": True,
            },
        )


def _asked(roll, once, path, error):
    """Return this rank's downloads, what it raises and finds, and who was missing."""
    calls, said = [], "none"

    def download(place):
        calls.append(place)
        Path(place).write_text(TEXT[:10])
        time.sleep(0.2)
        if error:
            raise error
        Path(place).write_text(TEXT)

    dist.barrier()
    if dist.get_rank() == 2:
        time.sleep(0.5)
    try:
        roll.call(once, download, str(path))
    except NotImplementedError:
        raise
    except Exception as caught:
        said = "rank 0's words" if error and str(error) in str(caught) else str(caught)
    return len(calls), said, path.read_text() if path.exists() else None, roll.absent
