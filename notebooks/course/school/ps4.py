"""Problem set 4, DDP by hand, on real ranks: what they send, and where they end.

The truth is one device, on minibatches that nobody split.
"""

from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course.school.checks import about, close, exercise, numbers, so_many
from course.school.draws import rand
from course.school.ranks import (
    COLLECTIVES,
    PAIRS,
    WAITED,
    attempt,
    calls_of_collectives,
    failed,
)

SENT = {*COLLECTIVES, *PAIRS} - {"barrier"}  # which sends no numbers
SWALLOWED = "no error came out of a no_sync block in which one was raised"
UNNAMED = "nothing was sent: call dist.all_reduce, by this name"


class Network(nn.Module):
    """Map 5 numbers to 2. No two parameters have equally many numbers.

    Without `spare`, some row above 0 uses every parameter.
    """

    def __init__(self, seed, spare=True):
        super().__init__()
        self.register_buffer("count", torch.tensor(seed % 1000))
        self.first = nn.Linear(5, 6)
        self.first.register_buffer("shift", torch.zeros(5), persistent=False)
        self.middle = nn.Linear(6, 6, bias=False)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.middle.weight  # tied
        self.frozen = nn.Linear(6, 7)
        self.frozen.weight.requires_grad = False
        self.side = nn.Linear(7, 7, bias=False)
        self.spare = nn.Linear(3, 1, bias=False) if spare else None  # no row passes it
        self.last = nn.Linear(7, 2)
        generator = torch.Generator().manual_seed(seed)
        for p in [*self.double().parameters(), *self.buffers()]:
            if p.is_floating_point():
                p.detach().uniform_(-0.5, 0.5, generator=generator)

    def forward(self, X):
        """Send all rows through, and those that begin above 0 through `side`."""
        h = torch.tanh(self.first(X - self.first.shift))
        h = torch.tanh(self.again(torch.tanh(self.middle(h))))
        h = torch.tanh(self.frozen(h))
        few = X[:, :1] > 0
        if few.any():
            h = h + few * self.side(h)
        return self.last(h)


def _loss(model, X, y, rows, k):
    """Return the sum of the shard's losses, times k / rows of the minibatch."""
    return ((model(X) - y) ** 2).sum() * k / rows


def _state(module):
    """Return all parameters by name, and all buffers; state_dict leaves some out."""
    return {
        name: tensor.detach().double().flatten().clone()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def _draw(random, spare=False, backwards=(1,) * 5, equal=True):
    """Yield a case for each world size, with so many `backwards`, step by step."""
    sizes = {
        name: p.numel()
        for name, p in Network(0, spare).named_parameters()
        if p.requires_grad
    }
    for k in (1, 2, 3):
        steps, everybody = [], range(k)
        # those whose rows pass the layer `side`, step by step
        who = [everybody] * 5
        if spare:
            who = [everybody, range(1, k), (), (0,), range(k - 1)]
        for passing, count in zip(who, backwards):
            rows = [random.sample(range(1, 6), k) for _ in range(count)]
            shards = []
            for rank in everybody:
                passes = rank in passing
                shards.append([_batch(random, part[rank], passes) for part in rows])
            whole = tuple(map(torch.cat, zip(*sum(shards, []))))
            steps.append(
                SimpleNamespace(
                    shards=shards,
                    whole=whole,
                    rows=len(whole[0]),
                    arguments=(),
                    interrupted=False,
                    forward_inside=False,
                )
            )
        seeds = random.sample(range(2**32), k)
        yield SimpleNamespace(
            k=k,
            lr=random.uniform(0.1, 0.2),
            spare=spare,
            sizes=sizes,
            steps=steps,
            seeds=seeds[:1] * k if equal else seeds,
        )


def _batch(random, rows, passes):
    X = rand(random, rows, 5)
    X[:, 0] = -X[:, 0].abs()
    if passes:
        X[0, 0] *= -1
    return X, rand(random, rows, 2)


def _train(case, before, wrap, after):
    """Train what wrap(module) returns, in a rank; call `after` once in each step."""
    rank, steps = dist.get_rank(), []
    module = Network(case.seeds[rank], case.spare)
    params, ready = list(module.parameters()), []  # whose gradient is there already
    wanting = [p for p in params if p.requires_grad]
    for p in wanting:
        p.register_post_accumulate_grad_hook(ready.append)
    before(module)
    model = wrap(module)
    start = _state(module)
    for step in case.steps:
        (*alone, last), loss = step.shards[rank], None
        with (
            calls_of_collectives(names=SENT) as quiet,
            model.no_sync() if alone else nullcontext(),
        ):
            for X, y in alone:
                _loss(model, X, y, step.rows, case.k).backward()
            if step.forward_inside:
                loss = _loss(model, *last, step.rows, case.k)
        if step.interrupted:
            with suppress(InterruptedError):
                with model.no_sync():
                    raise InterruptedError  # what ends a block half-way
                raise RuntimeError(SWALLOWED)
        if loss is None:
            loss = _loss(model, *last, step.rows, case.k)
        ready.clear()
        with (
            calls_of_collectives(names=SENT) as seen,
            _overlap(lambda: len(ready) == len(wanting)) as waits,
        ):
            loss.backward()
            after(module, *step.arguments)
        with torch.no_grad():  # torch's SGD would import its compiler in each rank
            for p in params:
                if p.grad is not None:
                    p -= case.lr * p.grad
                    p.grad = None
        steps.append((quiet, seen, waits, _state(module)))
    return start, steps


class _Handle:
    """Stand for what an asynchronous all-reduce returns; note its first use."""

    def __init__(self, handle, note):
        self._handle, self._note = handle, note

    def __getattr__(self, name):
        self._note(self)
        return getattr(self._handle, name)


@contextmanager
def _overlap(all_ready):
    """Yield a dict, which counts all-reduces.

    at once: those that are not asynchronous. early: those whose handle is used before
    the last one has begun. touched: those whose tensor has been written into between
    call and wait. never: those whose handle is not used. soon: those that begin before
    all gradients are there, as `all_ready()` says.
    """
    waits = dict.fromkeys(["at once", "early", "touched", "never", "soon"], 0)
    handles, used, all_reduce = [], [], dist.all_reduce

    def noted(tensor, *args, **kwargs):
        waits["early"] = len(used)
        waits["soon"] += not all_ready()
        handle = all_reduce(tensor, *args, **kwargs)
        if handle is None:
            waits["at once"] += 1
            return None
        version = tensor._version  # counts who writes; the sum comes in without

        def use(one):
            if one not in used:
                used.append(one)
                waits["touched"] += tensor._version != version

        handles.append(_Handle(handle, use))
        return handles[-1]

    with patch.object(dist, "all_reduce", noted):
        yield waits
    waits["never"] = len(handles) - len(used)


@exercise("ps4/start_equal", points=3, seconds=60)
def start_equal(random, start_equal):
    """Let ranks that begin differently start equal; each then trains on all rows."""
    for case in _draw(random, equal=False):
        for step in case.steps:
            step.shards = [[step.whole]] * case.k
            step.rows *= case.k
        yield from _compare_training(case, before=start_equal)


@exercise("ps4/average_gradients", points=3, seconds=60)
def average_gradients(random, average_gradients):
    """Train on every rank's own rows; average after each backward."""
    for case in _draw(random, spare=True):
        yield from _compare_training(case, _one_each, after=average_gradients)


@exercise("ps4/average_in_buckets", points=4, seconds=60)
def average_in_buckets(random, average_in_buckets):
    """Train as above, with another size of bucket in each step."""
    for case in _draw(random, spare=True):
        # each alone; more, just full, less; more than full; three just full; all in
        # one: the second tells apart what the first leaves open
        for step, count in zip(
            case.steps,
            [
                random.randint(1, 2),
                43,
                random.randint(50, 67),
                19,
                random.randint(148, 999),
            ],
        ):
            step.arguments = [8 * count]
        yield from _compare_training(case, _in_buckets, after=average_in_buckets)


@exercise("ps4/average_in_hooks", points=4, seconds=60)
def average_in_hooks(random, average_in_hooks):
    """Train as above; only before the first step is the answer called."""
    for case in _draw(random):
        yield from _compare_training(case, _overlapping, before=average_in_hooks)


def supply():
    """Return what `DDP` is judged with: ranks that start equal."""

    def start_equal(module):
        for part in [*module.parameters(), *module.buffers()]:
            dist.broadcast(part.detach(), src=0)

    return {"start_equal": start_equal}


@exercise("ps4/DDP", points=4, seconds=60, supply=supply)
def ddp(random, DDP):
    """Wrap differing modules; train with several backwards to a step."""
    for case in _draw(random, backwards=(1, 3, 1, 2, 3), equal=False):
        case.steps[2].interrupted = True
        case.steps[4].forward_inside = True
        yield from _compare_training(case, _one_each, wrap=DDP)


def _compare_training(
    case,
    check_messages=None,
    before=lambda module: None,
    wrap=lambda module: module,
    after=lambda *_: None,
):
    """Compare start, messages (by `check_messages`) and weights, step by step."""
    ranks, error = attempt(partial(_train, case, before, wrap, after), case.k)
    yield failed(
        so_many(case.k, "rank"),
        error,
        "weights from every rank",
        {
            "a parameter has gradient None on a rank whose rows did not use it: that "
            "counts as zero": case.spare and r"got (<class ')?NoneType",
            "this is None: a gradient that no row has, which counts as zero; or what "
            "all_reduce returns, which writes into the tensor that it is "
            "handed": case.spare and "'NoneType'",
            "a frozen weight takes no hook: ask p.requires_grad": "require grad",
            "what is raised in a no_sync block has to come out of it": SWALLOWED,
            "all_reduce returns a handle with async_op=True, else None: it writes into "
            "the tensor that it is handed": "'wait'|operand.*'NoneType'",
            "all ranks must call the same collectives in the same order, also those "
            "that receive, and those whose gradient is None": case.k > 1 and WAITED,
        },
    )
    own = [_state(Network(seed, case.spare)) for seed in case.seeds]
    for name in own[0]:
        got, mine = [start[name] for start, _ in ranks], [one[name] for one in own]
        changed = not close(got[0], numbers(mine[0]))
        yield about(so_many(case.k, "rank"))(
            f"{name} on every rank at the start",
            got,
            [mine[0]] * case.k,
            {
                "every rank keeps its own: was it sent, and written into?": mine,
                "rank 0's own numbers must stay as they are": changed,
            },
        )
    for number, (step, truth) in enumerate(zip(case.steps, _alone(case))):
        if check_messages:
            for rank, (_, steps) in enumerate(ranks):
                say = about(f"rank {rank} of {case.k}, step {number + 1}")
                quiet, seen, waits, _ = steps[number]
                yield from check_messages(say, case, step, quiet, seen, waits)
        rows = []
        for shard in step.shards:  # a shard: one (X, y) for each backward
            rows.append(sum(len(X) for X, _ in shard))
        yield from _compare_weights(
            about(
                f"{so_many(case.k, 'rank')} with {rows} rows, lr "
                f"{case.lr:.3f}; step {number + 1}"
            ),
            case.lr,
            len(step.shards[0]),
            [steps[number][3] for _, steps in ranks],
            *truth,
        )


def _alone(case):
    """Yield for each step the state before, each rank's gradients, the state after.

    Of the gradients there are two lists: of all backwards, and of the newest one.
    """
    module = Network(case.seeds[0], case.spare)
    for step in case.steps:
        before = _state(module)
        own = [
            _grads(module, *map(torch.cat, zip(*shard)), step.rows, case.k)
            for shard in step.shards
        ]
        newest = [
            _grads(module, *shard[-1], step.rows, case.k) for shard in step.shards
        ]
        whole = _grads(module, *step.whole, len(step.whole[0]), 1)
        with torch.no_grad():
            for name, p in module.named_parameters():
                p -= case.lr * whole[name].view(p.shape)
        yield before, own, newest, _state(module)


def _grads(module, X, y, rows, k):
    """Return flat gradients by the names that `_state` uses, zeros for none."""
    grads = {name: 0.0 * values for name, values in _state(module).items()}
    wanting = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(
        _loss(module, X, y, rows, k), list(wanting.values()), materialize_grads=True
    )
    return grads | {name: grad.flatten() for name, grad in zip(wanting, found)}


def _one_each(say, case, step, quiet, sent, waits):
    """Compare with an all-reduce for each parameter, and none in no_sync."""
    yield say(
        "numbers in each all-reduce in no_sync",
        quiet,
        [],
        {"in no_sync nothing is sent": True},
    )
    got, wanted = (
        sorted(sizes, key=str)  # there may be names of other collectives
        for sizes in (sent, case.sizes.values())
    )
    left_out = {name for name, numel in case.sizes.items() if numel not in got}
    yield say(
        "numbers in each all-reduce, in any order",
        got,
        wanted,
        {
            "a no_sync block that ended in an error before this step is still in "
            "force: use try and finally": step.interrupted,
            "this backward stands outside of the block and has to send, although its "
            "forward stood inside": [] if step.forward_inside else False,
            UNNAMED: [],
            "this is one message for all: here each parameter has its own": [
                sum(wanted)
            ],
            "36 is the tied weight: two layers share one parameter, which is sent "
            "once": got.count(36) == 2 and len(got) == len(wanted) + 1,
            "42 is the frozen weight, which wants no gradient": 42 in got,
            "all hooks reduce the same parameter: use the hook's argument": len(got)
            == len(wanted)
            and len(set(got)) == 1,
            "a gradient that is None is sent too, as zeros": bool(left_out)
            and {"side.weight", "spare.weight"} >= left_out,
        },
    )


def _overlapping(say, case, step, quiet, sent, waits):
    """Compare with an all-reduce for each parameter that backward does not wait for."""
    yield from _one_each(say, case, step, quiet, sent, waits)
    yield say(
        "all-reduces for which backward stands still",
        waits["at once"] + waits["early"],
        0,
        {
            "a call without async_op=True returns when the sum is there: backward "
            "waits": waits["at once"] > 0,
            "some handles are waited for while backward still has gradients to send: "
            "wait when it is over, in a function for queue_callback": True,
        },
    )
    yield say(
        "does a gradient leave before the last one is there?",
        waits["soon"] > 0,
        True,
        {
            "all are sent when backward is over, and nothing overlaps: the hook of a "
            "gradient starts its all-reduce": True
        },
    )
    yield say(
        "gradients that were written into before their wait()",
        waits["touched"],
        0,
        {"the sum is there after wait(): until then, leave the gradient alone": True},
    )
    yield say(
        "all-reduces that nobody waits for",
        waits["never"],
        0,
        {
            "an asynchronous call returns at once: in every backward, keep its handle, "
            "and wait() for it before backward returns": True
        },
    )


def _in_buckets(say, case, step, quiet, sent, waits):
    """Compare with an all-reduce for each bucket, the last layer's first."""
    (cap,) = step.arguments
    numels = list(case.sizes.values())[::-1]
    wanted = _pack(numels, cap)
    yield say(
        f"bucket_bytes {cap}, float64 gradients of {numels} numbers (last first);"
        " numbers in each all-reduce",
        sent,
        wanted,
        {
            UNNAMED: [],
            "the last parameter's gradient is packed first": _pack(numels[::-1], cap),
            "the last bucket has to be sent too, full or not": wanted[:-1],
            "a bucket that holds exactly so many bytes is full": _pack(numels, cap + 1),
            "bucket_bytes counts bytes: a number has 8": _pack(numels, cap * 8),
            "once a bucket is full, each gradient goes alone: what a new bucket holds "
            "is counted from 0": _pack(numels, cap, reset=False),
            "a gradient that does not fit belongs to the bucket all the same: this is "
            "closed when it holds bucket_bytes or more, not before": _pack_at_most(
                numels, cap
            ),
        },
    )


def _pack(numels, cap, reset=True):
    """Return how many numbers each bucket holds; it is closed with `cap` bytes.

    reset: does the count begin anew with each bucket?
    """
    buckets, held = [0], 0
    for numel in numels:
        if 8 * held >= cap:
            buckets.append(0)
            held = 0 if reset else held
        buckets[-1] += numel
        held += numel
    return buckets


def _pack_at_most(numels, cap):
    """Return the same for buckets that never hold more, if a gradient is not larger."""
    buckets = [0]
    for numel in numels:
        if buckets[-1] and 8 * (buckets[-1] + numel) > cap:
            buckets.append(0)
        buckets[-1] += numel
    return buckets


def _compare_weights(say, lr, backwards, ranks, before, own, newest, after):
    """Yield how the ranks' weights are not those `after` the step of one device."""
    for name, wanted in after.items():
        grads, new = ([part[name] for part in parts] for parts in (own, newest))
        start, mine = before[name], [state[name] for state in ranks]
        yield _compare_parameter(
            partial(say, f"{name} on every rank", mine, [wanted] * len(ranks)),
            lr,
            backwards,
            start,
            grads,
            new,
        )


def _compare_parameter(compare, lr, backwards, start, grads, newest):
    """Compare one parameter: see `_compare_weights`."""
    k = len(grads)
    mean, mean_of_newest = sum(grads) / k, sum(newest) / k
    gaps = [mean if grad.any() else 0 * mean for grad in grads]
    mixed = [grad - new + mean_of_newest for grad, new in zip(grads, newest)]

    def stepped(*grads):  # one for all, or one a rank
        return [start - lr * grad for grad in grads] * (k // len(grads))

    return compare(
        {
            "these have not moved: is p.grad the mean, and p still the parameter "
            "that the optimizer was made with?": stepped(0 * mean),
            "every rank stepped with its own gradient: the mean must be in p.grad, "
            "where a hook is handed the parameter p": stepped(*grads),
            "the mean has to go to ranks that had no gradient, too": stepped(*gaps),
            "this is the sum over ranks; the mean is wanted": stepped(mean * k),
            "the gradients of several backwards are divided by their number: they are "
            "to add up": stepped(mean / backwards),
            "only the newest gradient was averaged: what has been added up in p.grad "
            "is each rank's own still": stepped(*mixed),
            "only the newest gradient is there: what was added up before it "
            "counts, too": stepped(mean_of_newest),
        },
    )
