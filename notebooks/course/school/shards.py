"""Exercises of lessons: which rows each device or rank works on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from course.school.checks import (
    about,
    close,
    exercise,
    flat,
    numbers,
    so_many,
    unequal,
)
from course.school.draws import (
    calls_of_lenet,
    generator,
    images,
    others_draw,
    rand,
    rows_seen,
)
from course.school.linear import draw_batch, draw_layer, layer
from course.school.ranks import WAITED, attempt, failed
from manual_dp import get_params, init_params, lenet, loss, split_batch
from manual_dp.devices import try_devices

PARAMETERS = "W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"  # LeNet's
RAISED = {  # what an answer raises before there is a sum: why
    "NoneType": "a gradient is not there yet: backward on all devices comes first, "
    "then the sums",
    "holds a list": "allreduce gets one tensor from each device: call it once for each "
    "parameter",
    "untyped_storage": "allreduce gets one tensor from each device: call it once for "
    "each parameter",
    "holds shape": "one call sums one parameter over all devices: zip(*replicas) gives "
    "those that belong together",
    "scalar outputs": "loss gives a number for each image: take their sum, then "
    "backward",
}


@exercise("split_the_work/by_data", cases=[(3, 7), (2, 6), (1, 3)])
def by_data(random, by_data, *, k, n):
    """Look at the gradients that it leaves, and at the images each device has seen."""
    X, y = images(random, n)
    params = init_params("he", generator(random), torch.float64)
    devices = try_devices(k)
    replicas, whole = (
        [get_params(params, device) for device in devices] for _ in range(2)
    )
    shards = [[*parts] for parts in split_batch(X, y, devices)]
    lengths = [len(shard) for shard in shards[0]]
    say = about(f"{so_many(k, 'device')} with {lengths} images")
    with calls_of_lenet() as calls:
        try:
            back = by_data([[*one] for one in replicas], *map(list, shards))
        except Exception as error:
            why = [hint for said, hint in RAISED.items() if said in str(error)]
            if not why:
                raise
            raised = f"{type(error).__name__}: {error}"
            yield say("what by_data does", raised, "no error", {why[0]: True})
            return
    yield _untouched(say, params, replicas)
    yield _own_shards(say, X, calls, replicas, lengths)
    yield say(
        "parameters without a gradient",
        [
            name
            for one in replicas
            for name, p in zip(PARAMETERS, one)
            if p.grad is None
        ][:4],
        [],
        {
            "backward was not called: it writes into p.grad (torch.autograd.grad does "
            "not)": True
        },
    )
    for one, images_, labels in zip(whole, *shards):
        loss(lenet(images_, one), labels).sum().backward()
    yield _summed(say, lengths, replicas, whole, back, rand(random, 102_400))
    yield say(
        "gradients of b4 in memory",
        len({one[-1].grad.data_ptr() for one in replicas}),
        k,
        {"the devices share one tensor: each needs its own, as on two GPUs": True},
    )


def _untouched(say, params, replicas):
    """Compare the weights of replicas with `params`, from which they were copied."""
    changed = [
        (name, p.detach().cpu(), before)
        for one in replicas
        for name, p, before in zip(PARAMETERS, one, params)
        if not torch.equal(p.detach().cpu(), before)
    ]
    return say(
        "parameters that have changed",
        [name for name, *_ in changed[:4]],
        [],
        {
            "these are sums over the devices: sum the gradients, p.grad, not the "
            "weights": all(
                torch.allclose(p, len(replicas) * before) for _, p, before in changed
            ),
            "only the gradients are asked for: take no step": True,
        },
    )


def _own_shards(say, X, calls, replicas, lengths):
    """Compare the rows that each replica has seen with its shard of X."""
    rows_of = rows_seen(calls, replicas, X)
    if rows_of is None:
        return None
    *seen, others = (sorted({*rows}) for rows in rows_of)
    every, wanted = (
        [*range(len(X))],
        [rows.tolist() for rows in torch.arange(len(X)).split(lengths)],
    )
    busy = [rank for rank, rows in enumerate(seen) if rows]
    idle = [rank for rank, rows in enumerate(seen) if not rows]
    return say(
        "images that each device has seen",
        seen,
        wanted,
        {
            "no image went through lenet": not calls,
            "they went through other weights than those of the replicas": bool(others),
            "these are other images, perhaps X of a cell above: use X_shards": not busy,
            f"device {(busy or [0])[0]} did all the work: each takes its own "
            "shard": len(busy) == 1 and seen[busy[0]] == every,
            "each device saw all images: it takes its own shard only": seen
            == [every] * len(seen),
            f"device {(idle or [0])[0]} was left out: write it for any number of "
            "devices": bool(idle) and all(seen[rank] == wanted[rank] for rank in busy),
            "device r works on shard r, with replica r: zip the three lists": True,
        },
    )


def _summed(say, lengths, replicas, whole, back, marks):
    """Compare the gradients, each by one number: its product with random numbers."""

    def marked(params):
        return [
            float(p.grad.detach().cpu().flatten() @ marks[: p.numel()]) for p in params
        ]

    k, n = len(lengths), sum(lengths)
    own, got = ([marked(one) for one in some] for some in (whole, replicas))
    means = [[x / length for x in row] for row, length in zip(own, lengths)]
    total, of_means = ([sum(same) for same in zip(*rows)] for rows in (own, means))
    wrong = [
        (rank, i)
        for rank, row in enumerate(got)
        for i, x in enumerate(row)
        if not close(x, total[i])
    ]
    if not wrong:
        return None
    rank, i = wrong[0]
    alone = [
        j for j in range(8) if close([row[j] for row in got], [row[j] for row in own])
    ]
    right = [r for r, row in enumerate(got) if close(row, total)]
    factor = got[rank][i] / total[i]
    grad, want = replicas[rank][i].grad.cpu(), sum(one[i].grad.cpu() for one in whole)
    near = (grad - want).abs() <= 1e-9 * want.abs().clamp(min=1)
    at = int(near.flatten().int().argmin())

    def times(row, factor):
        return [[x * factor for x in row]] * k

    pair = [[x + y for x, y in zip(own[0], own[1])]] * 2 if k > 2 else []
    return say(
        f"in the gradient of {PARAMETERS[i]} on device {rank}",
        grad.flatten()[at : at + 3],
        want.flatten()[at : at + 3],
        {
            "this was returned: it belongs into p.grad": isinstance(
                back, (list, tuple)
            ),
            "each device has the gradient of its own images: sum them over the "
            "devices. (If you did, the sum is in a copy: torch.cat and clone make "
            "one)": own,
            "devices 0 and 1 have added up, the others are left out: write it for any "
            "number of devices": k > 2 and close(got, [*pair, *own[2:]]),
            f"only device {(right or [0])[0]} has the sum: every device needs it": len(
                right
            )
            == 1
            and close(got, [total if r in right else row for r, row in enumerate(own)]),
            **{
                f"device {r}'s gradient is not in the sum": times(
                    [x - y for x, y in zip(total, own[r])], 1
                )
                for r in range(k)
            },
            f"of the 8 parameters of a replica, {len(alone)} are not summed": bool(
                alone
            )
            and all(
                close(row[j], total[j])
                for row in got
                for j in range(8)
                if j not in alone
            ),
            "this is the mean over the devices: leave it a sum": times(total, 1 / k),
            "this is the mean over all images: leave it a sum": times(total, 1 / n),
            "each device has the mean of its own images: take the sum of the loss, "
            "then sum over the devices": means,
            "each device took the mean of its own images: take the sum of the "
            "loss": times(of_means, 1),
            "these are means of means: take the sum of the loss, and leave sums as "
            "they are": times(of_means, 1 / k),
            f"this is {factor:.3g} times the sum: is something added more than "
            "once?": times(total, factor),
        },
        whole=got,
    )


@exercise("dataparallel/forward", cases=[(4, 10), (4, 5), (3, 2), (2, 7), (1, 4)])
def forward(random, forward, *, k, n):
    """Call it on a layer that notes its calls; then send a gradient back."""
    layer, X, calls, own = draw_layer(random), rand(random, n, 3), [], []

    class Noted(nn.Linear):
        def forward(self, X):
            bare = self is own[0] and self.weight is own[1]
            calls.append((bare, len(X)))  # these, in replicas too
            weights.append(self.weight)  # kept, so that no other takes its place
            places.append([X.device.type, self.weight.device.type])
            return super().forward(X)

    weights, places = [], []
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
        {
            "these are parts: torch.cat puts them together": list(parts),
            "the shards come in another order than the devices": torch.cat(parts[::-1]),
            f"there were {n} rows, and there are more outputs: each device computes "
            "its own shard, and no other": isinstance(got, list) and len(got) > n,
            "some rows went through no call of the module: cut all of them": 0
            < sum(rows for _, rows in calls)
            < n,
            "each row of X gives one row: torch.cat joins the outputs of all devices": (
                isinstance(outputs, torch.Tensor) and outputs.shape != right.shape
            ),
        },
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
        yield say(
            "copies of the weights",
            len({id(weight) for weight in weights}),
            len(shards),
            {"one copy serves all shards: each device needs its own": True},
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
    if k != 2:
        return
    places.clear()
    try:  # the device called meta has shapes, and no numbers that could come home
        both = [torch.device("cpu"), torch.device("meta")]
        # without a bias, which on meta makes torch import its compiler, for seconds
        forward(Noted(3, 4, bias=False), both, torch.ones(5, 3))
    except NotImplementedError:
        came = True
    except Exception:
        came = False
    else:
        came = False
    say = about("5 rows, two devices, called cpu and meta")
    yield say(
        "where the rows and the weights of each call are",
        sorted(places),
        [["cpu", "cpu"], ["meta", "meta"]],
        {
            "rows and weights meet on the shard's device: p.to(device, copy=True), and "
            "scatter": True
        },
    )
    yield say(
        "outputs that torch.cat gets from devices[0]",
        2 if came else 1,
        2,
        {"bring each output home first: output.to(devices[0])": True},
    )


@exercise(
    "split_the_batch/my_rows",
    cases=[
        (10, 4, 0),
        (43, 4, 3),
        (8, 4, None),
        (9, 8, 2),
        (7, 3, 1),
        (3, 8, 5),
        (5, 1, 1),
    ],
)
def my_rows(random, my_rows, *, n, k, epoch):
    """Ask every rank for its rows; compare with torch's sampler, which is not asked."""
    seed = random.randint(10, 999)
    epoch = random.randint(4, 9) if epoch is None else epoch
    before, asked = torch.get_rng_state(), []
    torchs = DistributedSampler.__iter__
    DistributedSampler.__iter__ = lambda own: asked.append(own) or torchs(own)
    try:
        got = numbers([my_rows(n, k, rank, seed, epoch) for rank in range(k)])
    finally:
        DistributedSampler.__iter__ = torchs
    wanted = [DistributedSampler(range(n), k, rank, seed=seed) for rank in range(k)]
    for own in wanted:
        own.set_epoch(epoch)
    right = [*map(list, wanted)]
    say = about(f"n {n}, world_size {k}, seed {seed}, epoch {epoch}")
    yield say(
        "how often was torch's own sampler asked?",
        len(asked),
        0,
        {"draw, fill up and deal yourself: the check compares with torch's": True},
    )
    yield others_draw(
        say,
        before,
        "torch.manual_seed and a bare torch.randperm use the generator of the whole "
        "program: hand randperm one of your own, torch.Generator()",
    )
    yield say(
        f"the rows of rank{'s' * (k > 1)} {', '.join(map(str, range(k)))}",
        got,
        right,
        _dealt_otherwise(got, right, n, k, seed, epoch),
    )


def _dealt_otherwise(got, right, n, k, seed, epoch):
    """Return hints for rows, a list for each rank, that are not those of torch."""

    def deal(number, length=-(-n // k) * k):
        draw = torch.Generator().manual_seed(number)
        order = (torch.randperm(n, generator=draw).tolist() * k)[:length]
        return [order[rank::k] for rank in range(k)]

    def places(ranks):
        return [row for one_a_rank in zip(*ranks) for row in one_a_rank]

    whole, size = places(right), len(right[0])
    lists = all(isinstance(rows, list) for rows in got)
    if not lists:
        return {"return the rows of this rank, a list": True}
    sizes = [len(rows) for rows in got]
    equal = sizes == [size] * k
    each = [sorted(map(str, rows)) for rows in got]
    dropped = n % k > 0 and got == deal(seed + epoch, n // k * k)
    blocks = [whole[rank * size :][:size] for rank in range(k)]
    unfilled = [whole[:n][rank * size :][:size] for rank in range(k)]
    floor = [whole[rank * (n // k) :][: n // k] for rank in range(k)]
    in_blocks = got in (blocks, unfilled, floor)
    numbered_otherwise = [deal(other) for other in (seed, epoch, seed * epoch, 0)]
    of_own = [
        [deal(first + rank)[rank] for rank in range(k)]
        for first in (seed + epoch, seed, epoch, 0)
    ]
    named = {
        "these are the rows of all ranks: return those of `rank`": [right] * k,
        "the last rows are dropped, as with drop_last=True: fill up instead": dropped,
        "every rank has all rows: take every world_size-th, from place `rank` on": (
            k > 1 and got in ([whole[:n]] * k, [whole] * k)
        ),
        "these are blocks of neighbouring places: take every world_size-th "
        "place": in_blocks,
        "these are the rows of another rank: rank r begins at place r": (
            sorted(map(str, got)) == sorted(map(str, right))
            or got in [[whole[p + way :: k] for p in range(k)] for way in (1, -1)]
        ),
        "the ranks have unequally many rows, and one would wait for the others: repeat "
        "rows from the front until world_size divides the length (3 rows over 8 ranks: "
        "twice)": len(set(sizes)) > 1,
        "each rank has too many rows: stop when world_size divides the length": sizes[0]
        > size,
        "torch's seed for an epoch is seed + epoch": got in numbered_otherwise,
        "each rank draws an order of its own: all must draw the same": got in of_own,
        "the rows are right, their order is not: keep the order of the draw": (
            each == [sorted(map(str, rows)) for rows in right]
        ),
        "filled up with other rows: repeat those from the front of the order": (
            equal and places(got)[:n] == whole[:n]
        ),
    }
    return {
        **named,
        "another order than torch's: it is torch.randperm(n, generator=...), of a "
        "generator that begins anew with seed + epoch at each call": equal,
    }


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
    own_rows = [sum(right) / max(1, n) for n in sizes]
    of_own_rows = [own_rows, [part / k for part in own_rows]]  # or k times its own
    return say(
        "the accuracy on each rank",
        found,
        [answer] * k,
        {
            "return the accuracy, on every rank": [None] * k,
            "this is rounded down: divide with /, not with //": [0] * k,
            "these are the rows that are wrong: count those where argmax and y agree": [
                1 - answer
            ]
            * k,
            "every rank has the accuracy of its own rows: add up over ranks": own,
            "this is the mean of the ranks' accuracies: a row of a rank with few "
            "counts more. Add up how many are right, and how many rows there "
            "are": of_means,
            "the sum is that of all ranks, the number of rows is not": any(
                close(found, parts, 1e-6) for parts in of_own_rows
            ),
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
        same_rows = sorted(map(str, flat(numbers(got)))) == sorted(map(str, left))
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
                "a row is missing: order[seen] is the first that nobody has read": [
                    left[1:][rank::k] for rank in range(k)
                ],
                "the last rows are lost where they do not divide by the ranks": [
                    even[rank::k] for rank in range(k)
                ],
                "the ranks that read before may have been more or fewer: take off the "
                "first `seen` rows, then deal": [
                    order[rank::k][seen // k :] for rank in range(k)
                ],
                "some rows are read twice, to give each rank as many: deal out only "
                "what is left": [full[rank::k] for rank in range(k)],
                "no row is lost or read twice, but they are dealt in another order: "
                "rank 0 gets the first that is left, rank 1 the next one": same_rows,
            },
        )
