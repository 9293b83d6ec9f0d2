"""Exercises of lessons on programs that others wrote: translated, or repaired.

The images of a rank, a ring, accumulation, a loop as a LightningModule, and a loop cut
into the three functions that the audit asks for.
"""

import copy
import os
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from course.school import linear
from course.school.checks import about, exercise, numbers, so_many, unequal
from course.school.draws import generator, rand
from course.school.ranks import (
    COLLECTIVES,
    WAITED,
    Roll,
    attempt,
    calls_of_collectives,
    failed,
    noting,
    on_ranks,
)

SECONDS = 40  # that a whole launch has
GRAD_ACCUM = 4


@exercise("resnet_cifar10/my_part")
def my_part(random, my_part):
    """Deal images out; each has a class of its own, by which it is known again."""
    from programs.resnet_ddp import crop_and_flip

    X = torch.randint(256, (24, 3, 32, 32), generator=generator(random)).byte()
    y, rows = (torch.randperm(24, generator=generator(random)) for _ in range(2))
    rows, seed = rows[:12], random.randrange(10**6)

    def draws():
        return torch.Generator().manual_seed(seed)

    alone = dict(zip(y[rows].tolist(), crop_and_flip(X[rows], draws())))
    plain = dict(zip(y.tolist(), X))
    for k in 1, 3, 2, 4:
        parts = []
        for rank in range(k):
            handed = X.clone(), y.clone(), rows.clone(), rank, k, draws()
            images, classes = my_part(*handed)
            parts.append((list(images), numbers(classes)))
        yield from _dealt_images(parts, alone, plain, y, rows)


def _dealt_images(parts, alone, plain, y, rows):
    """Compare the ranks' images and classes with those of one device.

    alone: {class: image} as one device crops it. plain: of all images, uncropped.
    """
    say = about(f"{so_many(len(parts), 'rank')}, a minibatch of {len(rows)} rows")
    images = sum((list(images) for images, _ in parts), [])
    classes = sum((classes for _, classes in parts), [])
    right = sorted(alone)
    yield say(
        "the classes on all ranks together, in order",
        sorted(classes),
        right,
        {
            "every rank has all rows: each takes its part": sorted(right * len(parts)),
            "the classes are those of other rows: take y[rows]": any(
                one not in alone for one in classes
            ),
            "together, the ranks have each row once: none is left out, none comes "
            "twice": True,
        },
    )

    def same_as(images_by_class):
        return [
            torch.equal(image, images_by_class[one])
            for image, one in zip(images, classes)
        ]

    mixed = all(
        any(torch.equal(image, other) for other in alone.values()) for image in images
    )
    yield say(
        "images that are not as one device crops and flips them",
        max(len(images), len(classes)) - sum(same_as(alone)),
        0,
        {
            "they are neither cropped nor flipped": all(same_as(plain)),
            "the images are right, but have the classes of others: deal both out "
            "alike": mixed,
            "an image is cropped by what the generator draws at its place: crop and "
            "flip all of X[rows] on every rank, and take the rank's part then": True,
        },
    )


@exercise("wrong_on_purpose/my_ring", seconds=60)
def my_ring(random, my_ring):
    """Run the ring on ranks; note what every message carries."""
    for k in 3, 4:
        yield from _ring_of(random, my_ring, k)


def _ring_of(random, my_ring, k):
    """Run the ring on k ranks."""
    held = rand(random, k, 1)

    def work():
        send, recv, sent = held[dist.get_rank()].clone(), torch.zeros(1).double(), []

        def note(name, tensor, *args, **kwargs):
            sent.append(tensor.flatten()[0].item())

        with (
            noting(note, ("isend", "send")),
            calls_of_collectives(names=COLLECTIVES) as others,
        ):
            my_ring(send, recv)
        return send, recv, sent, len(others)

    say = about(f"{k} ranks, each holds a number")
    results, error = attempt(work, k)
    yield failed(
        f"{k} ranks",
        error,
        "the sum in recv",
        {"each rank sends to the next and receives from the one before": WAITED},
    )
    send, recv, sent, others = zip(*results)
    yield say(
        "send, afterwards",
        send,
        held,
        {"send has changed: the first buffer needs a copy of it": True},
    )
    own = held.flatten().tolist()
    carried = [set(messages) for messages in sent]
    yield say(
        "recv on each rank",
        recv,
        [[sum(own)]] * k,
        {
            "recv is still 0: the sum belongs there": [[0.0]] * k,
            "every message carries 0: what should the first one carry?": all(
                messages == {0.0} for messages in carried
            ),
            "this is the mean: the sum is asked for": [[sum(own) / k]] * k,
            "each adds up its own number: add what has come": [[k * x] for x in own],
            "each rank sends its own number again and again: send on what has "
            "come": all(messages == {x} for messages, x in zip(carried, own)),
            "add what has come, each number once": True,
        },
    )
    yield say(
        "messages from each rank to the next; calls of collectives",
        [list(map(len, sent)), sum(others)],
        [[k - 1] * k, 0],
        {"a collective of torch's is no ring of yours": sum(others) > 0},
    )


@exercise(
    "wrong_on_purpose/my_step", seconds=60, supply=lambda: {"grad_accum": GRAD_ACCUM}
)
def my_step(random, my_step):
    """Take two steps on ranks; compare the weights after each, and what was sent."""
    for k in 2, 3:
        yield from _steps_of(random, my_step, k)


def _steps_of(random, my_step, k):
    """Take two steps on k ranks."""
    lr, params = random.uniform(0.2, 1), linear.draw_layer(random)
    rows = 2 * GRAD_ACCUM * k
    batches = linear.draw_batches(random, 2, rows)

    def work():
        model, seen, after = DDP(linear.layer(*params)), [], []
        rule, forwards = torch.optim.SGD(model.parameters(), lr), linear.Forwards(model)
        model.no_sync, sends = Mock(wraps=model.no_sync), []
        model.register_forward_pre_hook(
            lambda model, _: sends.append(model.require_backward_grad_sync)
        )
        for X, y in linear.cloned(batches):
            with forwards:
                my_step(model, rule, X, y)
            seen.append(forwards.seen)
            after.append(numbers(list(model.parameters())))
        return after, seen, model.no_sync.called and all(sends)

    def watched():
        with Roll() as roll:
            return roll.call(work), roll.absent, sum(roll.sizes())

    results, absent, sent = zip(*on_ranks(watched, k, SECONDS))
    say = about(f"{k} ranks, {rows} rows in all, grad_accum {GRAD_ACCUM}")
    yield say(
        "ranks missing at a collective that others wait in",
        max(absent),
        0,
        {"all ranks must step and meet equally often": True},
    )
    after, seen, outside = zip(*results)

    def step(factor, used=rows):
        """Return every rank's weights after a first step with so many rows."""
        first = [[tuple(part[:used] for part in batches[0])]]
        return [linear.descend(params, first, lr * factor)[-1]] * k

    got, micro = [first for first, _ in after], rows // GRAD_ACCUM
    yield say(
        f"the weights on every rank after one step, lr {lr:.3f}",
        got,
        step(1),
        {
            f"the step is {GRAD_ACCUM} times too long: the mean over micro-batches is "
            "wanted": step(GRAD_ACCUM),
            "the step is too short: DDP divides by the number of ranks itself": step(
                1 / k
            ),
            "the step comes after the first micro-batch: count from 1": step(
                1 / GRAD_ACCUM, micro
            ),
            "this is the step of the first micro-batch alone: count from 1, and "
            "divide": step(1, micro),
            "the ranks end apart: the last micro-batch must send": unequal(got),
        },
    )
    once, right = linear.descend(params, [[batch] for batch in batches], lr)
    stale = [both + first - start for both, first, start in zip(right, once, params)]
    yield say(
        "the weights on every rank after a second step",
        [second for _, second in after],
        [right] * k,
        {"the gradients of the step before are in it: zero_grad": [stale] * k},
    )
    size = sum(p.numel() for p in params)
    yield say(
        "how often the ranks meet in a step",
        [count / size / 2 for count in sent],
        [1] * k,
        {
            "no_sync stands around backward alone, but DDP decides in the forward: put "
            "both under it": all(outside) and min(sent) > 2 * size,
            "they meet in every micro-batch: once, in the last, is enough; forward "
            "and backward of the others belong under no_sync": min(sent) > 2 * size,
        },
    )
    yield from linear.one_by_one(say, micro // k, sum(seen, []))


@exercise("lightning/yours", seconds=60)
def yours(random, Yours):
    """Fit the module on one process, and lay it beside the loop by hand."""
    from manual_dp.data import ensure_torchvision

    ensure_torchvision()
    import lightning

    X, steps, rows = rand(random, 60, 1, 28, 28), 8, 8
    y = torch.randint(10, (len(X),), generator=generator(random))
    module = Yours()
    first = copy.deepcopy(module.net)
    with patch.dict(os.environ):  # Lightning writes into it
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(X, y), rows))

    def loop(rate, momentum=0.9, smoothing=0.1):
        """Return the weights if step i has the factor rate(i)."""
        net = copy.deepcopy(first)
        rule = torch.optim.SGD(net.parameters(), 0.1, momentum)
        for i, (X_part, y_part) in enumerate(zip(X.split(rows), y.split(rows))):
            rule.param_groups[0]["lr"] = 0.1 * rate(i)
            rule.zero_grad()
            F.cross_entropy(net(X_part), y_part, label_smoothing=smoothing).backward()
            rule.step()
        return list(net.parameters())

    def rate(i):
        return min(1, (i + 1) / (steps // 2))

    yield about(f"{len(X)} images, {rows} in a step")(
        "the weights after an epoch",
        list(module.net.parameters()),
        loop(rate),
        {
            "nothing was trained: training_step returns the loss": list(
                first.parameters()
            ),
            "the scheduler moves once an epoch: say interval": loop(lambda i: rate(0)),
            "the first rate is 0: the first step has number 0": loop(
                lambda i: rate(i - 1)
            ),
            "the warm-up takes all steps": loop(lambda i: (i + 1) / steps),
            "there is no warm-up": loop(lambda i: 1),
            "there is no momentum": loop(rate, momentum=0),
            "there is no label smoothing": loop(rate, smoothing=0),
        },
    )


def _pairs():
    """Return what the lesson's loop learns from."""
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(96, 6, generator=draw, dtype=torch.float64)
    return {"images": images, "texts": images + 0.1 * torch.rand(96, 6, generator=draw)}


@exercise("your_own_script/pairs", seconds=60, supply=_pairs)
def pairs(random, my_make_model, my_make_batch, my_step):
    """Take steps with the three functions, and with the loop that they come from."""

    def work():
        torch.manual_seed(dist.get_rank() + 7)  # as ranks of a script have it
        model, optimizer = my_make_model()
        first, rows = numbers(list(model.parameters())), []
        for t in range(4):
            batch = my_make_batch(t)
            rows.append(len(batch[0]))
            my_step(model, optimizer, *batch)
        return first, rows, list(model.parameters())

    for k in 2, 3, 1:
        yield from _cut_loop(*zip(*on_ranks(work, k, SECONDS)), k)


def _cut_loop(first, rows, last, k):
    """Compare what k ranks had at first, in each step, and have at last."""

    def cards(part):
        return [part[rank::k] for rank in range(k)]

    def loop(deal=cards, momentum=0.9, clear=True, own=range(k)):
        """Return the weights before the loop, and after four of its steps."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        before = numbers(list(net.parameters()))
        rule = torch.optim.SGD(net.parameters(), 0.1, momentum)
        for t in range(4):
            images, texts = (
                deal(part[12 * t : 12 * t + 12]) for part in _pairs().values()
            )
            if clear:
                rule.zero_grad()
            for rank in own:
                a, b = net(torch.cat([images[rank], texts[rank]])).chunk(2)
                loss = F.cross_entropy(a @ b.T, torch.arange(len(a)))
                (loss / len(own)).backward()
            rule.step()
        return before, numbers(list(net.parameters()))

    say, (before, right) = about(so_many(k, "rank")), loop()
    yield say(
        "the first weights on each rank",
        first,
        [before] * k,
        {"draw them as the loop does, after torch.manual_seed(0)": True},
    )
    yield say(
        "rows of each minibatch that make_batch returns",
        rows,
        [[12] * 4] * k,
        {"make_batch returns the whole minibatch; step takes the rank's rows": True},
    )
    alone = [loop(own=[rank])[1] for rank in range(k)]
    yield say(
        "the weights on each rank after four steps",
        last,
        [right] * k,
        {
            "each rank trains alone: wrap the model": k > 1 and alone,
            "every rank takes all rows": k > 1
            and [loop(lambda part: [part] * k)[1]] * k,
            "the sampler deals rows out like cards, not in blocks": k > 1
            and [loop(lambda part: part.chunk(k))[1]] * k,
            "there is no momentum": [loop(momentum=0)[1]] * k,
            "the gradients of the steps before are in it": [loop(clear=False)[1]] * k,
        },
    )
