"""The exercises of lessons on ranks: messages, a DDP, which rows, decisions."""

from functools import partial
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DistributedSampler

from course.school.checks import about, close, exercise, numbers, so_many, unequal
from course.school.draws import describe, rand, summed
from course.school.linear import averaged, draw_batch, draw_layer, layer
from course.school.ranks import COLLECTIVES, WAITED, attempt, failed, watched

LONGER = 20  # their first optimizer imports torch's compiler


@exercise("processes/exchange")
def exchange(random, exchange):
    """Let two ranks exchange tensors of several shapes, one after the other."""
    shapes = [(3,), (), (2, random.randint(2, 4)), (random.randint(2**18, 2**19),)]
    for k, pair in (2, [0, 1]), (3, [2, random.randint(0, 1)]):
        held = [{rank: rand(random, *shape) for rank in pair} for shape in shapes]

        def work(pair=pair, held=held):
            rank, found = dist.get_rank(), []
            for tensors in held if rank in pair else []:
                mine = tensors[rank].clone()
                theirs = exchange(mine, sum(pair) - rank)
                found.append([_few(theirs), _few(mine)])
            return found

        results, error = attempt(work, k)
        who = f"ranks {pair[0]} and {pair[1]} of {k}"
        yield failed(
            f"{who}, tensors of shape {shapes[0]} and others",
            error,
            "the other's tensor on both",
            {
                "both ranks wait in send, which ends when the other receives: let one "
                "of them receive first, or start with "
                "isend": r"in i?send\b.*in i?send\b",
                "both ranks wait for a message that nobody has sent: one of them must "
                "send first; and what isend returns must be kept, and waited for: a "
                "message that nobody holds is not "
                "sent": r"waiting: .*(recv|wait|exchange).*in (recv|wait|exchange)",
                "`other` says which rank it is, and only these two ranks take "
                "part": ".",
            },
        )
        for number, (shape, tensors) in enumerate(zip(shapes, held)):
            theirs, after = zip(*(results[rank][number] for rank in pair))
            mine = [_few(t) for t in tensors.values()]
            say = about(
                f"{who}, tensors of {so_many(prod(shape), 'number')} in float64"
            )
            yield say(
                "the tensor that each handed over, afterwards",
                after,
                mine,
                {
                    "the tensor that was handed over has changed: receive into one of "
                    "your own, torch.empty_like(tensor)": True
                },
            )
            yield say(
                "what each returned",
                theirs,
                mine[::-1],
                {
                    "return the tensor that came": "a NoneType" in theirs,
                    "this is the rank's own tensor: return the other's": mine,
                },
            )


def _few(value):
    """Return a tensor's shape and five of its numbers, or what else it is."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    flat = value.detach().flatten()
    return {
        "shape": list(value.shape),
        "numbers": flat[:: max(1, len(flat) // 4)].tolist(),
    }


@exercise("processes/ring")
def ring(random, ring_allreduce):
    """Call it on every rank; note what else it uses."""
    for k in 4, 2, 5, 3, 1:
        held = rand(random, k, random.randint(1, 6))

        def work(held=held):
            own = held[dist.get_rank()].clone()
            with watched(names=COLLECTIVES) as calls:
                returned = ring_allreduce(own)
            return own, returned, calls

        results, error = attempt(work, k)
        given = describe(numbers(held))
        yield failed(
            given,
            error,
            "the sum on every rank",
            {
                "every rank waits in send, which ends when its neighbour receives: "
                "start with isend, then receive, then "
                "wait": r"waiting: (rank \d+ in i?send\b(, )?)+$",
                "every rank waits for a message that nobody has sent: start with "
                "isend, keep what it returns, and wait for that: a message that nobody "
                "holds is not "
                "sent": r"waiting: (rank \d+ in (i?recv|wait|ring_allreduce)\b(, )?)+$",
                "each rank sends as often as its neighbour on the right "
                "receives": WAITED,
            },
        )
        after, returned, calls = map(list, zip(*results))
        yield about(given)(
            "collectives that each rank called",
            calls,
            [[]] * k,
            {
                "the ring is yours to build: use send and recv, isend and irecv "
                "alone": True
            },
        )
        yield from summed(held, after, after, returned)


@exercise("ddp_by_hand/ddp", seconds=60)
def ddp_by_hand(random, MyDDP):
    """Wrap networks that differ; look at the gradients after each of two backwards."""
    for k in 2, 3:
        starts, X = rand(random, k, 14), rand(random, k, 3, 3)

        def work(starts=starts, X=X):
            rank, steps = dist.get_rank(), []
            module = _two_layers(starts[rank])
            params = list(module.parameters())
            model = MyDDP(module)
            begun = parameters_to_vector(params)
            for _ in range(2):
                module.zero_grad()
                with watched() as calls:
                    model(X[rank]).square().sum().backward()
                steps.append(
                    ([list(calls)], torch.cat([p.grad.flatten() for p in params]))
                )
            return begun, steps

        results, error = attempt(work, k)
        yield failed(
            so_many(k, "rank"),
            error,
            "gradients on every rank",
            {
                "`finish` ran in the first hook, before other gradients came: hand "
                "over the function, queue_callback(self.finish)": "'NoneType'|callback",
                "all ranks must call the same collectives: broadcast stands on those "
                "that receive, too": WAITED,
            },
        )
        say, (begun, steps) = about(so_many(k, "rank")), zip(*results)
        yield say(
            "the weights on each rank when they are wrapped",
            begun,
            [starts[0]] * k,
            {
                "every rank keeps its own: overwrite them with rank 0's": starts,
                "rank 0's own weights must stay as they are": not close(
                    begun[0], starts[0].tolist()
                ),
            },
        )
        own = [
            torch.cat(
                [
                    grad.flatten()
                    for grad in torch.autograd.grad(
                        module(x).square().sum(), list(module.parameters())
                    )
                ]
            )
            for x in X
            for module in [_two_layers(starts[0])]
        ]
        for step, found in enumerate(zip(*steps)):
            sent, grads = zip(*found)
            yield from _averaged(say, step, sent[0], grads, own)


def _two_layers(start):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    vector_to_parameters(start.clone(), module.parameters())
    return module


def _averaged(say, step, sent, grads, own):
    """Compare the messages of rank 0 in a backward, and all ranks' gradients."""
    k = len(own)
    mean = sum(own) / k
    yield say(
        f"numbers in each message of backward {step + 1}",
        sent,
        [[14]],
        {
            "nothing was sent: the first hook of each backward asks for `finish`, with "
            "queue_callback": [[]] if step == 0 else False,
            "nothing was sent the second time: has `finish` made `queued` False "
            "again?": [[]],
            "every hook asked for `finish`: only the first one should": [[14] * 4],
            "one message for each gradient: pack all into one flat tensor": len(sent[0])
            == 4,
        },
    )
    yield say(
        f"the gradients on each rank after backward {step + 1}",
        grads,
        [mean] * k,
        {
            "every rank holds its own: write the mean back into each p.grad": own,
            "this is the sum over ranks: the mean is wanted": [mean * k] * k,
            "this is divided by the number of ranks twice": [mean / k] * k,
            "these numbers stand at other places: unpack them in the order in which "
            "they were packed": close(
                sorted(
                    grads[0].tolist()
                    if isinstance(grads[0], torch.Tensor)
                    else grads[0]
                ),
                sorted(mean.tolist()),
            ),
        },
    )


@exercise("ddp_program/sampler")
def sampler(random, indices):
    """Ask for the rows of every rank."""
    for n, k in (10, 4), (7, 3), (12, 3), (2, 5), (5, 1):
        epoch, seed = random.randint(2, 9), random.randint(10, 999)
        got = numbers([indices(n, k, rank, epoch, seed) for rank in range(k)])
        wanted = [DistributedSampler(range(n), k, rank, seed=seed) for rank in range(k)]
        for own in wanted:
            own.set_epoch(epoch)
        rows = -(-n // k)

        def filled(seed, n=n, k=k, rows=rows):
            order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
            return (order.tolist() * k)[: rows * k]

        right = filled(seed + epoch)
        say = about(f"length {n}, world_size {k}, epoch {epoch}, seed {seed}")
        yield say(
            f"the rows of rank{'s' * (k > 1)} {', '.join(map(str, range(k)))}",
            got,
            list(map(list, wanted)),
            {
                "torch's seed for an epoch is seed + epoch": any(
                    got == [filled(other)[rank::k] for rank in range(k)]
                    for other in (seed, epoch, seed * epoch)
                ),
                "every rank has all rows: its own are every world_size-th": got
                in ([right[:n]] * k, [right] * k),
                "this is a block of neighbouring places for each rank: take every "
                "world_size-th place, from place `rank` on": [
                    right[rank * rows :][:rows] for rank in range(k)
                ],
                "each rank draws an order of its own: all must draw the same": [
                    filled(seed + epoch + rank)[rank::k] for rank in range(k)
                ],
            },
        )


@exercise("ddp_program/evaluate", seconds=60)
def evaluate(random, evaluate):
    """Ask every rank for the accuracy, each with rows of its own, perhaps none."""
    for sizes, training in ([5, 2], True), ([0, 6, 3], False):
        mean, sizes = rand(random, 3), random.sample(sizes, len(sizes))
        norm = nn.BatchNorm1d(3, dtype=torch.float64)
        norm.running_mean.copy_(mean)
        model = nn.Sequential(norm, layer(*draw_layer(random)))
        right = [1 if size > 4 else size for size in sizes]
        shards = [_labelled(random, model, *pair) for pair in zip(sizes, right)]
        model.train(training)

        def work(model=model, shards=shards):
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
    return say(
        "the accuracy on each rank",
        found,
        [answer] * k,
        {
            "every rank has the accuracy of its own rows: add up over ranks": own,
            "this is the mean of the ranks' accuracies: a row of a rank with few "
            "counts more. Add up how many are right, and how many rows there are": any(
                close(found, [sum(own) / count] * k, 1e-6)
                for count in (k, sum(n > 0 for n in sizes))
            ),
            "the sum is that of all ranks, the number of rows is not": [
                sum(right) / max(1, n) for n in sizes
            ],
            "only rank 0 has the answer: all_reduce gives the sums to all": close(
                found[0], answer, 1e-6
            )
            and unequal(found),
        },
        1e-6,
    )


@exercise("how_often/local_sgd", seconds=60)
def local_sgd(random, local_sgd):
    """Train from equal weights on every rank."""
    for k, every, steps in (3, 3, 7), (1, 2, 3):
        start, lr = draw_layer(random), random.uniform(0.2, 0.6)
        batches = [[draw_batch(random, 4) for _ in range(steps)] for _ in range(k)]

        def work(start=start, lr=lr, batches=batches, every=every):
            model = layer(*start, grad=start[0])  # an old gradient
            rule = torch.optim.SGD(model.parameters(), lr)
            local_sgd(model, rule, cross_entropy, batches[dist.get_rank()], every)
            return list(model.parameters())

        got, error = attempt(work, k, 2 * LONGER)
        given = f"{so_many(k, 'rank')}, {steps} batches each, every = {every}"
        yield failed(given, error, "trained weights on every rank")

        def after(due, start=start, lr=lr, batches=batches, k=k):
            return averaged([start] * k, batches, lr, due)

        right = after(lambda i, every=every: i % every == 0)
        yield about(given)(
            "the weights on each rank",
            got,
            right,
            {
                "this is an average in every step: that is DDP, here a rank takes "
                "steps of its own": after(lambda i: True),
                "nothing is averaged: replace the weights by their mean when it is "
                "due": after(lambda i: False),
                "steps are counted from 1: the first average is after step "
                "`every`": after(lambda i, every=every: i % every == 1),
                "in each step: clear old gradients, go backward, step; when it is due, "
                "replace each weight by its sum over ranks, divided by their "
                "number": True,
            },
        )


@exercise("together/any_rank", seconds=60)
def any_rank(random, any_rank):
    """Ask on every rank, with flags that are plain, then with such as isnan() makes."""
    for k, as_tensors in (3, False), (2, True):
        middle = [[False, True, False], [True, True, False], [False, True, True]]
        asked = [[False] * k, [True] * k, *(middle if k == 3 else [[False, True]])]
        random.shuffle(asked)

        def work(asked=asked, as_tensors=as_tensors):
            flags = [case[dist.get_rank()] for case in asked]
            handed = [torch.tensor(flag) if as_tensors else flag for flag in flags]
            return [numbers(any_rank(flag)) for flag in handed]

        results, error = attempt(work, k)
        kind = "tensors such as loss.isnan()" if as_tensors else "True or False"
        given = f"{so_many(k, 'rank')}, asked {len(asked)} times; the flags are {kind}"
        yield failed(
            given,
            error,
            "an answer on every rank",
            {
                "all ranks must call the same collective, also a rank whose flag is "
                "False": WAITED
            },
        )
        yield _agreed(about(f"{given}: {asked}"), list(zip(*results)), asked)


def _agreed(say, answers, asked):
    def all_say(answer):
        return [[answer(flags)] * len(flags) for flags in asked]

    found = [
        [bool(one) if isinstance(one, (int, float)) else one for one in ranks]
        for ranks in answers
    ]
    return say(
        "what any_rank returned, a list for each time",
        found,
        all_say(any),
        {
            "return the answer, on every rank": None in found[0],
            "a list is true, whatever is in it: any(...) of it is the "
            "answer": isinstance(found[0][0], list),
            "this is rank 0's flag: ask all ranks": all_say(lambda flags: flags[0]),
            "only rank 0 has the answer: all_reduce gives it to all": [
                [any(flags), *flags[1:]] for flags in asked
            ],
            "this is each rank's own flag: ask the others, too": asked,
            "this is True only if all ranks say so: one is enough": all_say(all),
        },
    )


@exercise("keep_only_a_part/step", seconds=60)
def stage1_step(random, step):
    """Take a step of SGD with rate 1 from weights that are zero."""

    def work(own):
        grad, flat = own[dist.get_rank()].clone(), torch.zeros_like(own[0])
        grads, weights = list(grad.chunk(len(own))), list(flat.chunk(len(own)))
        shard = nn.Parameter(weights[dist.get_rank()])
        step(weights, grads, shard, torch.optim.SGD([shard], lr=1.0))
        left = (grad if shard.grad is None else shard.grad).untyped_storage()
        return -flat, left.data_ptr() != grad.untyped_storage().data_ptr()

    yield from _means(
        random,
        work,
        "how far the weights moved on each rank",
        True,
        "a copy of the chunk is left in shard.grad: divide in place",
    )


@exercise("keep_only_a_part/reduce", seconds=60)
def stage2_reduce(random, reduce):
    """Reduce the gradients of a weight and a bias; look at whose memory is left."""

    def work(own):
        grads = [part.view(-1, 2) for part in own[dist.get_rank(), :8].split((6, 2))]
        params = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
        for p, grad in zip(params, grads):
            p.grad = grad.clone()
        shard = nn.Parameter(torch.zeros_like(own[0].chunk(len(own))[0]))
        reduce(params, shard)
        left = (
            any(p.grad is not None for p in params)
            or shard.grad is not None
            and (shard.grad.untyped_storage().nbytes() > shard.nbytes)
        )
        return shard.grad, left

    yield from _means(
        random,
        work,
        "shard.grad on each rank",
        False,
        "set each p.grad to None; and a view keeps the whole flat "
        "gradient in memory: grads[rank] / n is a tensor of its own",
    )


def _means(random, work, what, whole, left):
    """Compare the chunks that ranks have with the mean, and ask what is left."""
    for k in 3, 2:
        own = rand(random, k, 8 + k % 2)
        own[:, 8:] = 0  # with 3 ranks, what fills up the last chunk
        results, error = attempt(partial(work, own), k, LONGER)
        say, parts = about(so_many(k, "rank")), own.chunk(k, 1)
        yield failed(
            so_many(k, "rank"),
            error,
            what,
            {"all ranks must call the same collectives, in one order": WAITED},
        )

        def every(chunks, k=k):
            return [torch.cat(chunks)] * k if whole else chunks

        means = [part.mean(0) for part in parts]
        found, kept = zip(*results)
        yield say(
            what,
            found,
            every(means),
            {
                "shard.grad is None: this rank's chunk belongs there": [None] * k,
                "all are zero: optimizer.step() updates shard from shard.grad; and "
                "make the gradients flat, not the weights": every(
                    [0 * mean for mean in means]
                ),
                "each rank's own chunk is new, the others are old: the ranks must give "
                "one another what is new, after the update": whole
                and [
                    torch.cat([mean * (i == rank) for i, mean in enumerate(means)])
                    for rank in range(k)
                ],
                "a sum is not a mean: divide by the number of ranks": every(
                    [part.sum(0) for part in parts]
                ),
                "each rank uses its own gradient: sum over the ranks first": any(
                    close(
                        found,
                        numbers(
                            every([part[rank] / n for rank, part in enumerate(parts)])
                        ),
                    )
                    for n in (1, k)
                ),
                "rank r has the finished sum of chunk r alone": True,
            },
        )
        yield say(
            "is more left in memory than was asked for?",
            kept,
            [False] * k,
            {left: True},
        )
