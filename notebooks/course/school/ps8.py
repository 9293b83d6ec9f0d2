"""Problem set 8, a run that must go on: what ranks that come and go agree on."""

import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

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
from course.school.draws import forms, generator, rand
from course.school.linear import draw_layer, layer
from course.school.ranks import Roll, attempt, failed, noting, on_ranks

SECONDS = 40  # that all ranks have
TEXT = "first half, second half"
FEW = 5  # looks for a file that are no waiting
FLOAT32 = 3e-7  # what ten roundings to float32 change at most, in numbers below 1


@exercise("ps8/once", points=3, seconds=60)
def once(random, once):
    """Have three ranks ask for files five times; one is late, two downloads fail."""
    situations = [  # name of the file, what the download raises, is the file there?
        ("old", None, True),
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

        results, stuck = attempt(work, 3, SECONDS / 4)
    yield failed("3 ranks; some downloads work, some fail", stuck, "an end on each")
    for (name, error, again), found in zip(situations, zip(*results)):
        found, looks = zip(*found)
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
                "others wait in vain for some rank: rank 0 looks for the file, and "
                "tells all. A rank that comes late, and looks by itself, finds what "
                "rank 0 has just downloaded": any(absent),
                "only rank 0 downloads": any(calls[1:]),
                "a file that is there is not downloaded again": again and any(calls),
                "half a file is left there: download to another name, then "
                "os.replace": files[0] == TEXT[:10],
                "a rank returned before the whole file was there: it waits in a "
                "collective, to which rank 0 comes after the "
                "download": not error and files[1] != TEXT,
                "an error may have no words: is the error None?": name == "mute",
                "a failed download raises on every rank, with the words of rank 0's "
                "error": bool(error),
            },
        )
        often = max(looks)  # a few times are fine
        yield about(f"3 ranks; the download {does}")(
            "how often a rank looked for the file",
            often if often > FEW else 1,
            1,
            {
                "no rank waits by looking again and again: it waits in a collective, "
                "to which rank 0 comes after the download": True
            },
        )


def _asked(roll, once, path, error):
    """Return this rank's downloads, what it raises and finds, and who was missing.

    And how often it looked for the file.
    """
    calls, looks, said, stat = [], [], "none", os.stat
    if path.name == "old" and dist.get_rank() == 0:
        path.write_text(TEXT)

    def download(place):
        calls.append(place)
        Path(place).write_text(TEXT[:10])
        time.sleep(0.1)
        if error:
            raise error
        Path(place).write_text(TEXT)

    def look(place, *args, **kwargs):
        if str(place) == str(path):
            looks.append(place)
        return stat(place, *args, **kwargs)

    dist.barrier()
    if dist.get_rank() == 2:  # it comes when the file is there, if it ever is
        end = time.monotonic() + (2 if error is None else 0.3)
        while time.monotonic() < end and not _holds(path, TEXT):
            time.sleep(0.01)
    try:
        with patch.object(os, "stat", look):
            roll.call(once, download, str(path))
    except NotImplementedError:
        raise
    except Exception as caught:
        said = "rank 0's words" if error and str(error) in str(caught) else str(caught)
    found = path.read_text() if path.exists() else None
    return (len(calls), said, found, roll.absent), len(looks)


def _holds(path, text):
    return path.exists() and path.read_text() == text


@exercise("ps8/resume_at", points=2)
def resume_at(random, resume_at):
    """Ask where runs go on whose rows, batches and steps do not divide."""
    runs = [_run(random, kind) for kind in ("batch", "step", "rows", "both") * 3]
    runs[-1] = *runs[-1][:-1], _place(*runs[-1])[2] + runs[-1][-1]  # it has ended

    def all_runs(place, **rule):
        return [place(*run, **rule) for run in runs]

    found = all_runs(resume_at)
    names = "rows, world_size, batch_size, accumulate, epochs, done"
    for run, got, right in zip(runs, found, all_runs(_place)):
        yield about(f"({names}) = {run}")(
            "epoch, batch, left",
            got,
            list(right),
            {
                "the numbers of one division, rounded up. The loader leaves out a "
                "batch that is not full: round the second one down": all_runs(
                    _place, down=()
                ),
                "an epoch's last step takes the batches that are left: round the "
                "third one up": all_runs(_place, down=(1, 2)),
                "the sampler fills up, so that no rank has fewer rows: round the "
                "first one up": all_runs(_place, down=(0, 1)),
                "the numbers of three divisions rounded down. Only the loader leaves "
                "something out": all_runs(_place, down=(0, 1, 2)),
                "batch_size is that of each rank, which has its part of the "
                "rows": all_runs(_place, alone=True),
                "batch is counted in batches: each step takes `accumulate`": [
                    (epoch, batch // run[3], left)
                    for run, (epoch, batch, left) in zip(runs, all_runs(_place))
                ],
                "an epoch's last step may be short, and the next epoch begins with a "
                "step of its own: round in each epoch": all_runs(_in_one_go),
                "left counts until the end of the run, not of this epoch": [
                    (epoch, batch, (left + run[-1]) // run[-2] - batch // run[3])
                    for run, (epoch, batch, left) in zip(runs, all_runs(_place))
                ],
                "round the three divisions one by one: rows of a rank, its batches, "
                "their steps": any(
                    close(found, all_runs(_place, down=down))
                    for down in ((0,), (1,), (2,), (0, 2))
                ),
                "the divisions may well be right: look which of epoch, batch and left "
                "differs, and count it by hand for this run": True,
            },
            whole=found,
        )


def _run(random, kind):
    """Draw a run; kind: what shows if it is rounded the wrong way; both: rows, step."""
    k, size, accumulate = (random.randint(*ends) for ends in ((2, 8), (5, 40), (2, 5)))
    batches, epochs = accumulate * random.randint(2, 9), random.randint(2, 9)
    own = batches * size + random.randint(1, size - 1)  # one is not full
    if kind == "step":
        own += random.randint(1, accumulate - 1) * size
    if kind in ("rows", "both"):  # without its last row a rank has a batch less ...
        own = (batches + (kind == "rows")) * size  # ... and a step, rounded up or down
    run = k * own - random.randint(1, k - 1), k, size, accumulate, epochs
    return *run, random.randint(1, _place(*run, 0)[2] - 1)


def _place(rows, k, size, accumulate, epochs, done, down=(1,), alone=False):
    """Return epoch, batch and steps left. down: divisions rounded down; alone: if k=1.

    The right one rounds down the second.
    """
    found = rows
    for number, by in enumerate((1 if alone else k, size, accumulate)):
        found = found // by if number in down else -(-found // by)
    epoch, step = divmod(done, found)
    return epoch, step * accumulate, epochs * found - done


def _in_one_go(rows, k, size, accumulate, epochs, done):
    """Return what follows from steps that reach over the end of an epoch: a mistake."""
    batches = -(-rows // k) // size
    return *divmod(done * accumulate, batches), -(
        -batches * epochs // accumulate
    ) - done


@exercise("ps8/master_sgd", points=3)
def master_sgd(random, MasterSGD):
    """Take small steps; save, go on, and let another one load what was saved."""
    lr, given = random.uniform(1e-3, 1.5e-3), "two bfloat16 tensors, numbers below 1"
    signs = [part.sign() for part in _drawn(random)]
    start = _near_one(random, signs, 0.2)
    steps = [_near_one(random, signs, 0.25) for _ in range(8)]
    params = [torch.nn.Parameter(p.clone()) for p in start]
    mine, saved, right = MasterSGD(params, lr), None, [p.double() for p in start]
    for number, grads in enumerate(steps, 1):
        say = about(f"{given}, lr {lr:.5f}, step {number}")
        _step(mine, params, grads)
        right = [w - lr * grad.double() for w, grad in zip(right, grads)]
        yield from _saves(say, mine, start, steps[:number], lr, right)
        yield from _rounded(say, params, mine, start)
        if number == 4:
            saved, then = mine.save(), right
    say = about(f"{given}, lr {lr:.5f}, saved after step 4, then four more steps")
    yield say(
        "what save() returned after step 4",
        saved,
        then,
        {
            "save() returns the tensors themselves, and later steps change them: "
            "clone each": right,
        },
        FLOAT32,
    )
    yield from _loads(say, MasterSGD, saved, then, steps[4:], lr, right)


def _saves(say, mine, start, steps, lr, right):
    """Compare what save() returns after some steps: type, then numbers."""
    got = mine.save()
    yield say(
        "what save() returns",
        forms(got) if isinstance(got, (list, tuple)) else got,
        forms([w.float() for w in right]),
        {
            "the copies are kept in 16 bits: p.detach().float() makes one in "
            "float32": isinstance(got, (list, tuple))
            and any("bfloat16" in form for form in forms(got)),
            "save() returns the list of float32 copies": True,
        },
    )
    products = [w.double() for w in start]
    for grads in steps:
        products = [w - (lr * grad).double() for w, grad in zip(products, grads)]
    last = [w.double() - lr * grad.double() for w, grad in zip(start, steps[-1])]
    yield say(
        "the numbers that save() returns",
        got,
        right,
        {
            "these numbers are where they began. In 16 bits so small a step is rounded "
            "away: subtract from the float32 copy, in place (w -= ...), and return its "
            "numbers, not those of params": start,
            "only the last step is in it: the copy is made once, in __init__, not "
            "from the 16 bits in each step": len(steps) > 1 and last,
            "lr * p.grad was rounded to 16 bits: make the gradient float32 "
            "first": products,
            "this walks uphill: subtract": [
                2 * w.double() - own for w, own in zip(start, right)
            ],
            "w -= lr * gradient, in float32": True,
        },
        FLOAT32,
    )


def _rounded(say, params, mine, before):
    """Compare the 16-bit weights with what save() returns, rounded."""
    wanted = [torch.as_tensor(w).bfloat16() for w in mine.save()]
    yield say(
        "the type and the shape of each of params",
        forms(params),
        forms(wanted),
        {"params stay in 16 bits: copy_ into them, which rounds": True},
    )
    yield say(
        "params; save()'s numbers, rounded, are wanted",
        params,
        wanted,
        {
            "params are where they were: write the float32 numbers into them, with "
            "p.data.copy_": before,
            "each of params holds its float32 copy, rounded": True,
        },
    )


def _loads(say, MasterSGD, saved, then, steps, lr, right):
    """Compare another MasterSGD, which begins anywhere and loads what was saved."""
    params = [torch.nn.Parameter(torch.zeros_like(w).bfloat16()) for w in then]
    other = MasterSGD(params, lr)
    other.load(saved)
    was = [w.bfloat16() for w in then]
    yield say(
        "after load(saved), what save() returns",
        other.save(),
        then,
        {
            "the copies hold numbers of 16 bits: load what was saved, as it is": was,
            "load() puts what was saved into the float32 copies": True,
        },
        FLOAT32,
    )
    yield from _rounded(say, params, other, [torch.zeros_like(w) for w in then])
    for grads in steps:
        _step(other, params, grads)
    yield say(
        "after load and four more steps, what save() returns",
        other.save(),
        right,
        tolerance=FLOAT32,
    )
    yield say(
        "the list that load() was given, after four more steps",
        saved,
        then,
        {
            "load() keeps the tensors that it is given, and steps change them: copy_ "
            "their numbers": right
        },
        FLOAT32,
    )


def _step(mine, params, grads):
    for p, grad in zip(params, grads):
        p.grad = grad.clone()
    mine.step()


def _drawn(random):
    return [rand(random, 3, 2), rand(random, 4)]


def _near_one(random, signs, room):
    """Draw bfloat16 tensors: 0.75, give or take room, with these signs.

    The neighbours of such a number are 0.004 away.
    """
    sizes = [0.75 + room * part for part in _drawn(random)]
    return [(sign * size).bfloat16() for sign, size in zip(signs, sizes)]


@exercise("ps8/scaler", points=4, seconds=60, cases=[3, 2, 1])
def scaler(random, AgreedScaler, *, k):
    """Unscale good gradients, and such as one rank's inf or nan makes all skip."""
    every = random.randint(2, 3)
    first = 2.0 ** random.randint(9, 11) if k > 1 else 1.0
    good, inf, nan = {}, {k - 1: torch.inf}, {0: torch.nan}
    plan = [*[good] * 2 * every, inf, *[good] * (every - 1), nan, *[good] * every]
    plan += [{**inf, **nan}, good]  # {rank: what stands in its gradients}, a step each
    plan += [inf]  # of one rank the factor is 1 by now, and becomes 0.5
    factor, row, steps = first, 0, []  # the right ones, for each step
    for bad in plan:
        scaled = [_scaled(random, factor, rank, bad.get(rank)) for rank in range(k)]
        was = factor
        row = 0 if bad else row + 1
        factor *= 0.5 if bad else 1
        if row == every:
            factor, row = 2 * factor, 0
        steps.append((bad, was, scaled, factor))

    def work():
        mine, seen = AgreedScaler(first, every), []
        with Roll() as roll:
            for _, _, scaled, _ in steps:
                own = scaled[dist.get_rank()]
                seen.append(_unscaled(roll, mine, own))
        return seen

    for number, (step, seen) in enumerate(zip(steps, zip(*on_ranks(work, k, SECONDS)))):
        bad = " and ".join(f"{what} on rank {rank}" for rank, what in step[0].items())
        say = about(
            f"{k} ranks, every {every}, step {number + 1}, factor {step[1]:g}, "
            f"{bad or 'all finite'}"
        )
        of = {name: [one[name] for one in seen] for name in seen[0]}
        yield from _agreed(say, *step, of)


def _unscaled(roll, mine, own):
    """Return what there is to see of one rank's call of unscale."""
    same = remember(grads=own)
    sent, grads = [], None

    def note(name, tensor, *args, **kwargs):  # gloo ends in tensors of other lengths
        sent.append(tensor.numel())
        if sent[-1] > 2:
            raise OverflowError("a message of so many numbers")

    with noting(note, ["all_reduce"]), suppress(OverflowError):
        grads = roll.call(mine.unscale, own)
    changed = [message for message in same(about("a rank's own gradients")) if message]
    return {
        "grads": grads,
        "forms": None if grads is None else forms(grads),
        "changed": changed,
        "factor": mine.factor,
        "sent": max(sent, default=0),
        "absent": roll.absent,
    }


def _scaled(random, factor, rank, bad):
    """Draw a rank's float16 gradients: large ones, small ones, and what is bad.

    Then some whose sum is inf in float16: the higher the rank, the more tensors.
    """
    grads = [rand(random, 3), 1e-6 * rand(random, 4)]
    if bad is not None:
        grads[random.randrange(2)][1] = bad
    huge = [60_000 + 100 * rand(random, 3) for _ in range(rank + 1)]
    return [*((factor * grad).half() for grad in grads), *(g.half() for g in huge)]


def _agreed(say, bad, was, scaled, factor, of):
    """Compare a step: votes, decisions, gradients and the factor after it."""
    k, skipped = len(scaled), [grads is None for grads in of["grads"]]
    yield say(
        "numbers in the largest message",
        max([2, *of["sent"]]),
        2,
        {"no gradient is sent: a rank sends its vote, one number": True},
    )
    yield say(
        "ranks missing at a collective",
        max(of["absent"]),
        0,
        {
            "the ranks' lists differ in length: a rank sends one vote for all of its "
            "gradients": not bad,
            "all ranks vote in each step, also one that knows that it must skip": True,
        },
    )
    yield next(filter(None, sum(of["changed"], [])), None)
    yield say(
        "does each rank skip?",
        skipped,
        [bool(bad)] * k,
        {
            "all are finite, but in float16 a sum of such numbers may be inf: look at "
            "each number": not bad,
            "each rank decides by its own gradients: let all vote, and skip if one "
            "has to": unequal(skipped),
            "nan is not finite either: isfinite() finds both": torch.nan
            in bad.values(),
            "return None if a rank has inf or nan, else the gradients": True,
        },
    )
    yield say(
        "the factor on each rank, after the step",
        of["factor"],
        [factor] * k,
        {
            "the factors part: all ranks halve it, whoever had inf": unequal(
                of["factor"]
            ),
            "halve it when a step is skipped": bool(bad) and [was] * k,
            "half of 1 is 0.5: // rounds it down to 0": bool(bad) and [was // 2] * k,
            "after `every` good steps in a row, double it": factor > was and [was] * k,
            "count anew after a skipped step, and after doubling": True,
        },
    )
    if bad:
        return
    yield say(
        "what unscale returns on each rank",
        of["forms"],
        [forms([grad.float() for grad in own]) for own in scaled],
        {"make each gradient float32, then divide": True},
    )
    yield say(
        "the gradients on each rank",
        of["grads"],
        [[grad.float() / was for grad in own] for own in scaled],
        {
            "they are still multiplied: divide by the factor": scaled,
            "divide by the factor that the loss was multiplied by, and double it "
            "after that": factor > was
            and [[grad.float() / factor for grad in own] for own in scaled],
            "the small ones were rounded: divide in float32, not in 16 bits": [
                [grad / was for grad in own] for own in scaled
            ],
            "each rank's own gradients, divided by the factor": True,
        },
    )


@exercise("ps8/outer", points=3, seconds=60, cases=[3, 2, 1])
def outer(random, Outer, *, k):
    """Meet five times, after steps of each rank's own; twice one has lost its work."""
    start, lr = draw_layer(random), random.uniform(0.5, 0.9)
    momentum = random.uniform(0.5, 0.9)
    lost = [None, None, k - 1, 0, None] if k > 1 else [None] * 5  # which rank
    left = [0, 0, torch.nan, 1e6, 0]  # what its weights are then
    moves = [[draw_layer(random) for _ in range(k)] for _ in lost]

    def work():
        rank, seen = dist.get_rank(), []
        params = list(layer(*start).parameters())
        mine = Outer(params, lr, momentum)
        with Roll() as roll:
            for own, who, what in zip(moves, lost, left):
                for p, move in zip(params, own[rank]):
                    p.data.fill_(what) if rank == who else p.data.add_(move)
                roll.call(mine.meet, rank != who)
                seen.append((numbers(params), roll.absent))
        return seen

    met = partial(_met, start, lr, momentum, moves, lost)
    right = met()
    mistakes = {
        hint: [[weights] * k for weights in after]
        for hint, after in _mistakes(met, k).items()
    }
    meetings = list(zip(*on_ranks(work, k, SECONDS)))
    whole = [[weights for weights, _ in seen] for seen in meetings]
    for number, (seen, who, what) in enumerate(zip(meetings, lost, left)):
        got, absent = zip(*seen)
        does = "all are sound"
        if who is not None:
            does = f"rank {who} has lost its work, and each of its weights is {what:g}"
        say = about(
            f"{k} ranks, lr {lr:.3f}, momentum {momentum:.3f}, meeting {number + 1}, "
            f"{does}"
        )
        yield say(
            "ranks missing at a collective",
            max(absent),
            0,
            {
                "a rank that has lost its work comes, too: it adds zeros, and gets "
                "the new weights": True
            },
        )
        wanted = numbers([right[number]] * k)
        sound = [rank for rank in range(k) if rank != who]
        fine = all(close(got[rank], wanted[rank]) for rank in sound)
        common = torch.tensor(flat(got[sound[0]]))
        yield say(
            "the weights on each rank",
            got,
            wanted,
            {
                "0 times nan is nan: add zeros for a rank that has lost its work": bool(
                    not common.isfinite().all()
                ),
                "weights that are lost are in the mean: only `sound` says which are, "
                "since they may be any numbers": bool((common.abs() > 1e3).any()),
                "the rank that has lost its work gets the new weights, too": fine,
                "the ranks end with different weights: average on all of them, and "
                "keep the old weights as clones, since p itself moves on": unequal(got),
                **mistakes,
                "gradient = old - mean; v = momentum * v + gradient; old -= lr * "
                "(gradient + momentum * v)": True,
            },
            whole=whole,
        )


def _mistakes(met, k):
    """Return hints: the common weights after each meeting, by usual mistakes."""
    return {
        "this is the way uphill: the gradient is old - mean, and a step subtracts": met(
            sign=-1
        ),
        "this is the mean itself: take a step of SGD towards it, with lr and "
        "momentum": met(plain=True),
        "momentum is missing: v = momentum * v + gradient, kept from meeting to "
        "meeting": met(keep=0, ahead=0),
        "v begins anew in each meeting: keep it": met(keep=0),
        "this is momentum without Nesterov: the step is lr * (gradient + momentum * "
        "v), with the new v": met(ahead=None),
        "old are the weights after the last meeting, not those of the start": met(
            stay=True
        ),
        "divide by the number of ranks whose work is sound": met(count=k),
    }


def _met(start, lr, momentum, moves, lost, **rule):
    """Return the common weights after each meeting; `rule` has a mistake."""
    sign, keep = rule.get("sign", 1), rule.get("keep", momentum)
    ahead = rule.get("ahead", momentum)
    old, velocity, after = start, [0 * p for p in start], []
    for own, who in zip(moves, lost):
        sound = [rank for rank in range(len(own)) if rank != who]
        count = rule.get("count", len(sound))
        new = []
        for i, p in enumerate(old):
            mean = sum(p + own[rank][i] for rank in sound) / count
            grad = sign * ((start[i] if rule.get("stay") else p) - mean)
            velocity[i] = keep * velocity[i] + grad
            step = velocity[i] if ahead is None else grad + ahead * velocity[i]
            base = start[i] if rule.get("stay") else p
            new.append(mean if rule.get("plain") else base - lr * step)
        old = new
        after.append(old)
    return after


@exercise("ps8/epoch_loss", points=2, seconds=60, cases=[2, 3, 4, 1])
def epoch_loss(random, epoch_loss, *, k):
    """Ask each rank for the mean loss; of four ranks, one has no rows."""
    counts = [
        torch.randint(1, 9, (size,), generator=generator(random))
        for size in random.sample(range(4) if k == 4 else range(1, 5), k)
    ]
    sums = [own * (rand(random, len(own)) + 2) for own in counts]
    say = about(f"{k} ranks with minibatches of {shorten(counts)} rows")

    def work():
        rank = dist.get_rank()
        same = remember(sums=sums[rank], counts=counts[rank])
        with Roll() as roll:
            mean = roll.call(epoch_loss, sums[rank], counts[rank])
        return mean, roll.absent, [message for message in same(say) if message]

    means, absent, changed = zip(*on_ranks(work, k, SECONDS))
    mean = torch.cat(sums).sum() / torch.cat(counts).sum()
    yield say(
        "ranks missing at a collective",
        max(absent),
        0,
        {"a collective is for all ranks: call it on every rank, print on one": True},
    )
    yield next(filter(None, sum(changed, [])), None)
    own_means = [one.sum() / count.sum() for one, count in zip(sums, counts)]
    yield say(
        "the mean loss on each rank",
        means,
        [mean] * k,
        {
            "every rank needs the mean, and returns it": None in means,
            "every rank has the mean of its own rows": own_means,
            "rank 0 has the mean, the others do not: reduce sends the sum to one rank, "
            "all_reduce to all": close(means[0], mean) and not close(means[-1], mean),
            "this is the mean of the ranks' means: a row of a rank with few rows "
            "counts too much": [sum(own_means) / k] * k,
            "this is no mean over all rows: add up sums, and counts": True,
        },
    )
