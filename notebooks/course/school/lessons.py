"""The exercises of lessons: each asks for the function that the lesson then shows.

Those that a problem set has as well stand there, under two names or as a variant.
Those on ranks stand in a file of their own. Here: the others, and a test of one step.
"""

from functools import partial
from math import nan
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course.school import lessons_on_ranks, ps1, ps2, ps3, ps4, ps5
from course.school.checks import about, close, exercise, flat, numbers, so_many
from course.school.draws import generator, images, rand, rows_seen, tensors, watched
from course.school.linear import draw_batch, draw_layer, layer
from manual_dp import init_params, lenet, loss
from manual_dp.devices import try_devices

__all__ = ["lessons_on_ranks", "ps1", "ps2", "ps3", "ps4", "ps5"]


@exercise("split_the_work/by_data")
def by_data(random, by_data):
    """Look at the replicas that it returns, and at the images that each has seen."""
    for k, n in (2, 6), (3, 7), (1, 3):
        X, y = images(random, n)
        params, rows = init_params("he", generator(random), torch.float64), -(-n // k)
        with watched() as calls:
            replicas = by_data(X.clone(), y.clone(), params, try_devices(k))
        got = [
            [p.grad for p in tensors(one, 8, "for each device, by_data")][::-2]
            for one in replicas
        ]  # of the biases: there are few of them
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
                "each image belongs to one device: split_batch cuts the "
                "minibatch": True,
            },
        )
        own = []
        for images_, labels in zip(X.split(rows), y.split(rows)):
            whole = [p.clone().requires_grad_() for p in params]
            loss(lenet(images_, whole), labels).sum().backward()
            own.append([p.grad for p in whole][::-2])

        def total(factors, own=own):
            return [sum(f * g for f, g in zip(factors, same)) for same in zip(*own)]

        right = total([1] * k)
        yield say(
            "the gradients in each replica of b4, b3, b2, b1",
            got,
            [right] * k,
            {
                "each device has its own gradient: add them up over the devices": own,
                "only device 0 has the sum: every device needs it": [right, *own[1:]],
                "this is the mean over the devices": [total([1 / k] * k)] * k,
                "each device took the mean of its own images: take the sum": [
                    total([1 / len(part) for part in X.split(rows)])
                ]
                * k,
            },
        )


@exercise("dataparallel/forward")
def forward(random, forward):
    """Call it on a layer that notes its calls; then send a gradient back."""
    for k, n in (4, 10), (4, 5), (3, 2), (2, 7), (1, 4):
        layer, X, calls, own = draw_layer(random), rand(random, n, 3), [], []

        class Noted(nn.Linear):
            def forward(self, X, calls=calls, own=own):
                bare = self is own[0] and self.weight is own[1]
                calls.append((bare, len(X)))  # these, in replicas too
                return super().forward(X)

        devices = try_devices(k)
        module = Noted(3, 4, dtype=torch.float64, device=devices[0])
        module.load_state_dict(dict(zip(("weight", "bias"), layer)))
        own.extend([module, module.weight])
        outputs = forward(module, devices, X.clone().to(devices[0]))
        bare, replicas = (
            sorted((call[1] for call in calls if call[0] == which), reverse=True)
            for which in (True, False)
        )
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


@exercise("buckets/send_full")
def send_full(random, send_full):
    """Let gradients get ready in some orders; note what was sent after each."""
    for sizes, shuffled in (
        ([2, 1, 3], False),
        ([1, 2, 1, 1], True),
        ([3], True),
        ([random.randint(1, 3) for _ in range(4)], True),
    ):
        names = iter("gradient " + str(i) for i in range(sum(sizes)))
        groups = [[next(names) for _ in range(size)] for size in sizes]
        order = sum(groups, [])
        while shuffled and len(sizes) > 1 and order[-1] not in groups[0]:
            random.shuffle(order)  # so that some are full before the first is
        log, seen = [], []
        buckets = [_Box(group, i, log) for i, group in enumerate(groups)]
        for p in order:
            send_full(buckets, p)
            seen.append(list(log))
        have = [set(order[: i + 1]) for i in range(len(order))]
        full = [[have_.issuperset(group) for group in groups] for have_ in have]
        right = [list(range([*row, False].index(False))) for row in full]
        eager = [
            sorted(
                (i for i, row in enumerate(zip(*full)) if row[j]),
                key=[*zip(*full)].__getitem__,
                reverse=True,
            )
            for j in range(len(order))
        ]
        say = about(f"buckets of {groups}; they get ready in the order {order}")
        yield say(
            "gradients that are missing at the end",
            [sorted(bucket.missing) for bucket in buckets],
            [[]] * len(sizes),
            {"p has come: take it out of its bucket's `missing`": True},
        )
        yield say(
            "buckets sent after each of them",
            seen,
            right,
            {
                "nothing is sent: call bucket.send()": [[]] * len(order),
                "these go as they fill up. Another rank fills them in another order: "
                "stop at the first bucket that is not full": eager,
                "a bucket was sent twice: its `work` is None only before it is "
                "sent": any(len(set(sent)) < len(sent) for sent in seen),
                "a bucket that was full early stays behind: when an earlier one is "
                "sent, look at the next ones, too": True,
            },
        )


class _Box:
    """Stand for a bucket, which notes in `log` that it is sent."""

    def __init__(self, params, number, log):
        self.params, self.missing, self.work = params, set(params), None
        self.number, self.log = number, log

    def send(self):
        self.work = self
        self.log.append(self.number)


@exercise("is_it_correct/one_step_test", seconds=90)
def one_step_test(random, one_step_test):
    """Ask it about a step that is right, and about wrong ones."""
    (X, y), outside = draw_batch(random, 7), []

    def make():
        net = layer(rand(type(random)(), 4, 3))  # others at each call
        return net, torch.optim.SGD(net.parameters(), 0.5)

    def step(net, optimizer, X, y, long=False, spoiled=None):
        if not dist.is_initialized():
            return outside.append(net.weight.data.add_(1))
        rank, n = dist.get_rank(), dist.get_world_size()
        loss = F.cross_entropy(net(X[rank::n]), y[rank::n], reduction="sum")
        (loss * n**long / len(y)).backward()
        dist.all_reduce(net.weight.grad)
        optimizer.step()
        net.weight.data += float(rank == spoiled)
        return nan

    right, long, last = (
        one_step_test(take, make, X, y, n)
        for take, n in (
            (step, 3),
            (lambda *a: step(*a, True), 2),
            (lambda *a: step(*a, False, 2), 3),
        )
    )
    say = about("7 rows, a linear layer")
    yield say(
        "was `step` called outside of run_ranks?",
        bool(outside),
        False,
        {"it needs a group, on one device too: run_ranks(..., 1)": True},
    )
    yield say(
        "a right step on 3 ranks (it returns nan as its loss)",
        right,
        0,
        {
            "the loss is older than the new weights: compare weights": right != right,
            "all must begin with equal weights: load one state_dict everywhere": True,
        },
    )
    yield say(
        "a step twice too long, alike on n = 2 ranks",
        long,
        1,
        {
            "it is always 0: compare weights after the step": close(
                [long, last], [0, 0]
            ),
            "the ranks agree, and all are wrong: compare with one device": close(
                long, 0
            ),
            "`n` says on how many ranks": 2,
            "divide the largest difference by one device's largest change": True,
        },
    )
    yield say(
        "only rank 2 is wrong: is the number above 0.01?",
        last > 0.01,
        True,
        {"some rank was not asked: take the largest difference of all": True},
    )


def _ring(size, n, a, b):
    return 2 * (n - 1) * (a + size / n / b)


@exercise("memory/count")
def count(random, count):
    """Hand it tensors that share memory, lie in lists, and go; compare the bytes."""
    n, m, few = (random.randint(*ends) for ends in ((200, 300), (20, 40), (5, 15)))
    alive, a, b = WeakSet(), torch.zeros(n), torch.zeros(m, dtype=torch.float64)
    part, whole, both = a[:few], 4 * n, 4 * n + 8 * m
    got = [
        count(alive, values)
        for values in (
            ((a, few, None), {}, a),
            ((a, slice(few)), {}, part),
            (([part, [part]], "sum"), {"out": (b,)}, (None, 2.0)),
            ((b,), None, b),
        )
    ]
    del a, b
    got += [count(alive, ((part, 3), {}, part)), count(WeakSet(), (part[:2],))]
    seen = [size or 0 for size in got]
    say = about(f"a has {n} numbers of 4 bytes, part = a[:{few}], b {m} of 8 bytes")
    yield say(
        "bytes after a, part, b in a list, b; part, with a and b deleted; then "
        "part[:2], and a new `alive`",
        got,
        [whole, whole, both, both, whole, whole],
        {
            "return the bytes": got == [None] * 6,
            "a view has no memory of its own: add its storage, and that storage's "
            "nbytes()": seen[1] != whole,
            "what is inside of lists or dicts was not found: tree_leaves": seen[2]
            < both,
            "this is what the last operation touched: `alive` has what came before, "
            "too": seen[3] == 8 * m,
            "nobody holds b any more: keep tensors and storages in `alive` alone": seen[
                4
            ]
            > whole,
        },
    )


@exercise("count_price_look/allreduce")
def allreduce(random, allreduce):
    """Ask for the seconds of some rings."""
    for size, n, a, b in (10, 4, 0.5, 4), (1000, 3, 2, 8), (7, 2, 0.25, 10):
        say = about(f"size {size}, ranks {n}, alpha {a}, bandwidth {b}")
        yield say(
            "seconds",
            allreduce(size, n, a, b),
            _ring(size, n, a, b),
            {
                "a round sends one chunk: cut the tensor into `ranks` chunks": _ring(
                    size * n, n, a, b
                ),
                "this is one message: a ring sends one in every round": a + size / b,
                "this is half: the sums must reach every rank": _ring(size, n, a, b)
                / 2,
                "alpha is paid in every round, not once": a + _ring(size, n, 0, b),
                "a message costs alpha, too": _ring(size, n, 0, b),
                "a ring of N ranks has 2 (N - 1) rounds": 2 * n * (a + size / n / b),
            },
        )


@exercise("count_price_look/two_levels")
def two_levels(random, two_levels):
    """Ask for the seconds of nodes, where each link differs."""
    fast, slow = (0.25, 16), (1.5, 2)
    for size, m, g in (24, 4, 8), (60, 3, 2), (7, 16, 4):
        inside, between = _ring(size, g, *fast), _ring(size, m, *slow)
        say = about(f"size {size}, {m} nodes of {g}, inside {fast}, between {slow}")
        yield say(
            "seconds",
            two_levels(size, m, g, fast, slow),
            inside + between,
            {
                "all rings of a node share its link: it carries the bytes of all of "
                "them": inside + _ring(size / g, m, *slow),
                "a ring over all GPUs is one level": _ring(size, m * g, *slow),
                "half of the inner ring comes first, half last: pay for it once": 2
                * inside
                + between,
                "the links have changed places: `inside` joins the GPUs of a "
                "node": _ring(size, g, *slow) + _ring(size, m, *fast),
            },
        )


@exercise("count_price_look/sends")
def sends(random, sends):
    """Ask when each bucket travels, on a slow wire and on a fast one."""
    for f, w, size, k, a, b in (
        (1, 2, 8, 4, 1, 4),
        (2, 3, 9, 1, 1, 2),
        (3, 6, 9, 3, 2, 1),
    ):

        def price(part, a=a, b=b):
            return a + part / b

        def times(long, first=1, late=False, one=True, f=f, w=w, k=k):
            free, bars = 0, []
            for i in range(k):
                full = f + w * (1 if late else (i + first) / k)
                start = max(full, free) if one else full
                free = start + long
                bars.append([start, free])
            return bars

        long, bars = price(size / k), [*map(list, sends(f, w, size, k, price))]
        say = about(f"forward {f}, backward {w}, size {size} in {k}, {a} + bytes / {b}")
        yield say(
            "start and end of each",
            numbers(bars),
            times(long),
            {
                "all wait for the end of backward: a bucket leaves when it is "
                "full": times(long, late=True) if k > 1 else False,
                "these travel at the same time: there is one wire": times(
                    long, one=False
                ),
                "the first is full after 1 / B of backward": times(long, first=0),
                "the clock starts with forward": times(long, f=0),
                "every bucket sends all bytes: divide the size": times(price(size)),
                "divide the bytes, not the price": times(price(size) / k),
            },
        )


@exercise("keep_only_a_part/hooks")
def hooks(random, hooks):
    """Note in which order layers are gathered, used and freed."""
    events, count = [], random.randint(2, 4)
    layers = [nn.Tanh() for _ in range(count)]
    for i, one in enumerate(layers):

        def used(one, inputs, output, i=i):
            events.append(f"use {i}")
            output.grad_fn.register_hook(lambda *_: events.append(f"use {i}"))

        one.register_forward_hook(used)
        hooks(
            one,
            partial(events.append, f"gather {i}"),
            partial(events.append, f"free {i}"),
        )
    nn.Sequential(*layers)(rand(random, 2).requires_grad_()).sum().backward()

    def order(forward, backward="gather use"):
        return [
            f"{does} {i}"
            for parts, way in ((forward, 1), (backward, -1))
            for i in range(count)[::way]
            for does in parts.split()
        ]

    yield about(so_many(count, "layer"))(
        "forward, then backward",
        events,
        order("gather use free"),
        {
            "nothing is gathered for backward: ask the layer's output, with "
            "output.register_hook": order("gather use free", "use"),
            "nothing is freed after forward": order("gather use"),
            "free after forward only: after backward, `reduce` does it": order(
                "gather use free", "gather use free"
            ),
            "gather in a forward_pre_hook: the layer must not begin without its "
            "weights": events[:1] != ["gather 0"],
        },
    )


@exercise("sixteen_bits/scaler")
def scaler(random, MyScaler):
    """Take good steps, and such as must be skipped; look at scale and weights."""
    every, scale, was, good = random.randint(2, 3), 2.0 ** random.randint(8, 12), 0, 0
    a, b, unused = (nn.Parameter(rand(random, 2)) for _ in range(3))
    rule, mine = torch.optim.SGD([unused, a, b], 0.1, 0, 0, 0.5), MyScaler(scale, every)
    for step, bad in enumerate([0, 1e308, 0, 0, nan] + [0] * (2 * every + 1), 1):
        say = about(f"every {every}, step {step}, a gradient{bool(bad) * f' of {bad}'}")
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
        grad = rand(random, 2, 2) + bad * torch.eye(2)[:, [step % 2]]
        old, was, a.grad, b.grad = torch.stack([a, b]).detach(), scale, None, None
        mine.scale((torch.stack([a, b]) * grad).sum()).backward()
        mine.step(rule)
        good = 0 if bad else good % every + 1
        scale *= 0.5 if bad else 2 if good == every else 1
        right, got = old - 0.1 * (grad + 0.5 * old), torch.stack([a, b])
        yield say(
            "the weights after the step",
            got,
            old if bad else right,
            {
                "skip, if any gradient is not isfinite()": not got.isfinite()
                .all()
                .item(),
                "weight decay moves weights, too: to skip, do not call step()": bool(
                    bad
                ),
                "divide the gradients by the factor, then let the optimizer step": True,
            },
        )


@exercise("many_machines/finish")
def finish(random, finish):
    """Give it no deaths, one while a file is written, and some that are drawn."""
    drawn = sorted(random.randint(1, 40) + random.random() / 3 for _ in range(5))
    some = random.randint(20, 30), random.randint(2, 4), 0.25, drawn
    for case in (
        (10, 4, 0.5, []),
        (12, 5, 1, [3.3, 9.4, 99.5]),
        (9, 3, 1, [2, 5.5]),
        some,
    ):
        say = about("work {}, every {}, cost {}, deaths {}".format(*case))
        yield say(
            "hours",
            finish(*case[:3], [*case[3]]),
            _hours(*case),
            {
                "a save that is not finished does not count": _hours(*case, "half"),
                "nothing is saved at the very end": _hours(*case, "last"),
                "a save takes time, too": _hours(*case, "free"),
                "a death costs the work since the last save": _hours(*case[:3], []),
                "what was saved before a death is kept": _hours(*case, "all"),
                "there is more than one death": _hours(*case[:3], case[3][:1]),
                "at a death the run goes on at once, not later": _hours(*case, "late"),
            },
        )


def _hours(work, every, cost, deaths, slip=None):
    clock, done, deaths = 0, 0, [*deaths]
    while done < work:
        part = min(every, work - done)
        saves = (done + part < work or slip == "last") and slip != "free"
        end = clock + part + cost * saves
        deaths = [death for death in deaths if death >= clock]
        if deaths and deaths[0] < (clock + part if slip == "half" else end):
            clock = end if slip == "late" else deaths.pop(0)
            done *= slip != "all"
        else:
            clock, done = end, done + part
    return clock


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
                "every rank gets all that is left: each row is read several times": [
                    left
                ]
                * k,
                "no row is lost or read twice, but these are blocks: deal them in "
                "turn": [left[rank * block :][:block] for rank in range(k)],
                "the last rows are lost where they do not divide by the ranks": [
                    left[: len(left) // k * k][rank::k] for rank in range(k)
                ],
                "some rows are read twice, to give each rank as many: deal out only "
                "what is left": [full[rank::k] for rank in range(k)],
            },
        )
