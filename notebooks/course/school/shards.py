"""Exercises of lessons: which rows each device or rank works on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from course.school.checks import about, close, exercise, flat, numbers, so_many, unequal
from course.school.draws import (
    calls_of_lenet,
    generator,
    images,
    rand,
    rows_seen,
    tensors,
)
from course.school.linear import draw_batch, draw_layer, layer
from course.school.ranks import WAITED, attempt, failed
from manual_dp import init_params, lenet, loss
from manual_dp.devices import try_devices


@exercise("split_the_work/by_data", cases=[(2, 6), (3, 7), (1, 3)])
def by_data(random, by_data, *, k, n):
    """Look at the replicas that it returns, and at the images that each has seen."""
    X, y = images(random, n)
    params, rows = init_params("he", generator(random), torch.float64), -(-n // k)
    with calls_of_lenet() as calls:
        replicas = by_data(X.clone(), y.clone(), params, try_devices(k))
    got = []
    for one in replicas:
        own = tensors(one, 8, "for each device, by_data")
        got.append([p.grad for p in own[::-2]])  # of the biases: there are few of them
    say = about(f"{so_many(n, 'image')}, {so_many(k, 'device')}")
    yield say(
        "places in memory: of the weights, and of the replicas",
        len({own[0].data_ptr() for own in (params, *replicas)}),
        1 + k,
        {
            "these share memory, and so their gradients: call get_params once for "
            "each device": len(replicas) == k
        },
    )
    seen = sorted(flat(rows_seen(calls, replicas, X)[:-1]))
    yield say(
        "images that went through the replicas",
        seen,
        list(range(n)),
        {
            "nothing went through what came back: return the replicas": not seen,
            "each image belongs to one device: split_batch cuts the minibatch": True,
        },
    )
    own = []
    for images_, labels in zip(X.split(rows), y.split(rows)):
        whole = [p.clone().requires_grad_() for p in params]
        loss(lenet(images_, whole), labels).sum().backward()
        own.append([p.grad for p in whole][::-2])

    def total(factors):
        return [sum(f * g for f, g in zip(factors, same)) for same in zip(*own)]

    right = total([1] * k)
    of_means = total([1 / len(part) for part in X.split(rows)])
    yield say(
        "the gradients in each replica of b4, b3, b2, b1",
        got,
        [right] * k,
        {
            "each device has its own gradient: add them up over the devices": own,
            "only device 0 has the sum: every device needs it": [right, *own[1:]],
            "this is the mean over the devices": [total([1 / k] * k)] * k,
            "each device took the mean of its own images: take the sum": [of_means] * k,
        },
    )


@exercise("dataparallel/forward", cases=[(4, 10), (4, 5), (3, 2), (2, 7), (1, 4)])
def forward(random, forward, *, k, n):
    """Call it on a layer that notes its calls; then send a gradient back."""
    layer, X, calls, own = draw_layer(random), rand(random, n, 3), [], []

    class Noted(nn.Linear):
        def forward(self, X):
            bare = self is own[0] and self.weight is own[1]
            calls.append((bare, len(X)))  # these, in replicas too
            return super().forward(X)

    devices = try_devices(k)
    module = Noted(3, 4, dtype=torch.float64, device=devices[0])
    module.load_state_dict(dict(zip(("weight", "bias"), layer)))
    own.extend([module, module.weight])
    outputs = forward(module, devices, X.clone().to(devices[0]))
    bare = sorted((rows for bare, rows in calls if bare), reverse=True)
    replicas = sorted((rows for bare, rows in calls if not bare), reverse=True)
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
        (outputs * outputs).sum().backward()
    weight, bias = (part.clone().requires_grad_() for part in layer)
    right = X @ weight.T + bias
    grads = torch.autograd.grad((right * right).sum(), (weight, bias))
    got, parts = numbers(outputs), right.split(-(-n // k))
    shards = [len(part) for part in parts]
    say = about(f"{so_many(n, 'row')}, {so_many(k, 'device')}, a linear layer")
    yield say(
        "what forward returned",
        got,
        right,
        {"these are parts: torch.cat puts them together": list(parts)},
    )
    if len(shards) > 1 or bare != shards:  # on one device either will do
        yield say(
            "rows in each call with the module's own weights",
            bare,
            [],
            {
                "the whole minibatch went through the module: cut it": bare == [n],
                "the module itself was called: each shard needs a copy of the "
                "weights, on its device; on the same device only copy=True makes "
                "one": True,
            },
        )
        yield say(
            "rows in each call with copied weights",
            replicas,
            shards,
            {
                "a device without rows takes no part: leave out its shard, and "
                "copy no weights for it": 0 in replicas,
                "each copy of the weights works on its own shard, once": True,
            },
        )
    grad = [p.grad for p in module.parameters()]
    yield say(
        "the gradient in the module, of the sum of the squared outputs",
        grad,
        list(grads),
        {
            "no gradient comes back to the module: autograd must be able to follow "
            "each copy back to the original": grad == [None, None]
        },
    )


@exercise("ddp_program/sampler", cases=[(10, 4), (7, 3), (12, 3), (2, 5), (5, 1)])
def sampler(random, indices, *, n, k):
    """Ask for the rows of every rank."""
    epoch, seed = random.randint(2, 9), random.randint(10, 999)
    got = numbers([indices(n, k, rank, epoch, seed) for rank in range(k)])
    wanted = [DistributedSampler(range(n), k, rank, seed=seed) for rank in range(k)]
    for own in wanted:
        own.set_epoch(epoch)
    rows = -(-n // k)

    def filled(seed):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        return (order.tolist() * k)[: rows * k]

    def dealt(seed):
        return [filled(seed)[rank::k] for rank in range(k)]

    right = filled(seed + epoch)
    other_seed = any(got == dealt(other) for other in (seed, epoch, seed * epoch))
    all_rows = got in ([right[:n]] * k, [right] * k)
    say = about(f"length {n}, world_size {k}, epoch {epoch}, seed {seed}")
    yield say(
        f"the rows of rank{'s' * (k > 1)} {', '.join(map(str, range(k)))}",
        got,
        list(map(list, wanted)),
        {
            "torch's seed for an epoch is seed + epoch": other_seed,
            "every rank has all rows: its own are every world_size-th": all_rows,
            "this is a block of neighbouring places for each rank: take every "
            "world_size-th place, from place `rank` on": [
                right[rank * rows :][:rows] for rank in range(k)
            ],
            "each rank draws an order of its own: all must draw the same": [
                filled(seed + epoch + rank)[rank::k] for rank in range(k)
            ],
        },
    )


@exercise(
    "ddp_program/evaluate", seconds=60, cases=[([5, 2], True), ([0, 6, 3], False)]
)
def evaluate(random, evaluate, *, sizes, training):
    """Ask every rank for the accuracy, each with rows of its own, perhaps none."""
    mean, sizes = rand(random, 3), random.sample(sizes, len(sizes))
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    norm.running_mean.copy_(mean)
    model = nn.Sequential(norm, layer(*draw_layer(random)))
    right = [1 if size > 4 else size for size in sizes]
    shards = [_labelled(random, model, *pair) for pair in zip(sizes, right)]
    model.train(training)

    def work():
        X, y = shards[dist.get_rank()]
        return evaluate(model, X, y), model[0].running_mean, model[0].training

    results, error = attempt(work, len(sizes))
    given = (
        f"{len(sizes)} ranks with {sizes} rows, of which {right} are given "
        "their label; the model has batch norm, and is in "
        f"{'training' if training else 'evaluation'} mode"
    )
    yield failed(
        given,
        error,
        "the accuracy over all rows, on every rank",
        {
            "a rank can have no rows: divide once, by the rows of all "
            "ranks": "ZeroDivisionError",
            "all ranks must call the same collectives, also a rank with no "
            "rows": WAITED,
        },
    )
    found, means, modes = zip(*results)
    say = about(given)
    yield say(
        "batch norm's running mean on each rank after the test",
        means,
        [mean] * len(sizes),
        {
            "the test runs in training mode: dropout would be on, and batch norm "
            "takes in the test's rows. Begin with model.eval()": True
        },
    )
    yield _accuracy(say, found, right, sizes)
    yield say(
        "is batch norm in training mode afterwards?",
        modes,
        [training] * len(sizes),
        {
            "dropout would stay off for the rest of training: after model.eval() "
            "say model.train()": training,
            "it was in eval mode before: leave it there": True,
        },
    )


def _labelled(random, model, size, right):
    """Draw rows of which the model, in eval mode, has so many right."""
    X, _ = draw_batch(random, size)
    best = model.eval()(X).argmax(1)
    return X, (best + (torch.arange(size) >= right)) % 4


def _accuracy(say, found, right, sizes):
    k, answer = len(sizes), sum(right) / sum(sizes)
    own = [r / max(1, n) for r, n in zip(right, sizes)]
    means = (
        sum(own) / k,
        sum(own) / sum(n > 0 for n in sizes),
    )  # of all; of who has rows
    of_means = any(close(found, [mean] * k, 1e-6) for mean in means)
    rank_0_alone = close(found[0], answer, 1e-6) and unequal(found)
    return say(
        "the accuracy on each rank",
        found,
        [answer] * k,
        {
            "every rank has the accuracy of its own rows: add up over ranks": own,
            "this is the mean of the ranks' accuracies: a row of a rank with few "
            "counts more. Add up how many are right, and how many rows there "
            "are": of_means,
            "the sum is that of all ranks, the number of rows is not": [
                sum(right) / max(1, n) for n in sizes
            ],
            "only rank 0 has the answer: all_reduce gives the sums to "
            "all": rank_0_alone,
        },
        1e-6,
    )


@exercise("many_machines/rows_to_go")
def rows_to_go(random, rows_to_go):
    """Ask each rank of the new number; all are given the same order."""
    for n, seen, k in (
        (12, 4, 2),
        (23, 8, 3),
        (10, 0, 2),
        (9, 9, 2),
        (random.randint(30, 60), 12, 4),
        (17, 15, 4),
    ):
        order = random.sample(range(n), n)
        got = [rows_to_go(list(order), seen, rank, k) for rank in range(k)]
        left = order[seen:]
        block, full = -(-len(left) // k), left + (left * k)[: -len(left) % k]
        even, all_left = left[: len(left) // k * k], [left] * k
        say = about(f"order {order}, seen {seen}, {so_many(k, 'rank')}")
        yield say(
            "one list a rank",
            got,
            [left[rank::k] for rank in range(k)],
            {
                "these begin at the front again: the first `seen` rows have been "
                "read": [order[rank::k] for rank in range(k)],
                "`seen` counts the rows of all ranks together, not of each": [
                    order[seen * k :][rank::k] for rank in range(k)
                ],
                "every rank gets all that is left: each row is read several "
                "times": all_left,
                "no row is lost or read twice, but these are blocks: deal them in "
                "turn": [left[rank * block :][:block] for rank in range(k)],
                "the last rows are lost where they do not divide by the ranks": [
                    even[rank::k] for rank in range(k)
                ],
                "some rows are read twice, to give each rank as many: deal out only "
                "what is left": [full[rank::k] for rank in range(k)],
            },
        )
