"""Problem set 4, DDP by hand, on real ranks: what they send, and where they end.

The truth is one device, on minibatches that nobody split.
"""

from functools import partial
from itertools import accumulate
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from course.school.checks import exercise
from course.school.compare import (
    ROUNDED,
    about,
    close,
    numbers,
    so_many,
    times,
    unequal,
)
from course.school.draws import rand
from course.school.ranks import WAITED, attempt, failed, watched

WORDS = {"words": 4}  # points that a person gives, by grade id
SECONDS = 6  # that all ranks have: plenty, unless they wait for one another
FROZEN, TIED, SPARE = 42, 36, 3  # how many numbers these have
UNNAMED = "nothing was sent: call dist.all_reduce, by this name"
# whose rows pass the layer `side`, step by step: all, not rank 0's, nobody's, ...
UNEVEN = (lambda rank, last: True, lambda rank, last: rank > 0,
          lambda rank, last: False, lambda rank, last: rank == 0,
          lambda rank, last: rank < last)


class Network(nn.Module):
    """Map 5 numbers to 2. No two parameters have equally many numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.first = nn.Linear(5, 6)
        self.middle = nn.Linear(6, 6, bias=False)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.middle.weight  # tied
        self.frozen = nn.Linear(6, 7)
        self.frozen.weight.requires_grad = False
        self.side = nn.Linear(7, 7, bias=False)
        self.spare = nn.Linear(3, 1, bias=False)  # no row passes it
        self.norm = nn.BatchNorm1d(7, affine=False).eval()  # its statistics are fixed
        self.last = nn.Linear(7, 2)
        self.register_buffer("scale", torch.ones(2), persistent=False)

    def forward(self, X):
        """Send all rows through, and those that begin above 0 through `side`."""
        h = torch.tanh(self.first(X - self.shift))
        h = torch.tanh(self.again(torch.tanh(self.middle(h))))
        h = self.norm(torch.tanh(self.frozen(h)))
        few = X[:, :1] > 0
        if few.any():
            h = h + few * self.side(h)
        return self.last(h) * self.scale


def _network(seed, spare=True):
    """Draw a network; without `spare`, some row above 0 uses every parameter."""
    generator = torch.Generator().manual_seed(seed)
    module = Network().double()
    for p in [*module.parameters(), *module.buffers()]:
        if p.is_floating_point():
            p.data.copy_(torch.rand(p.shape, dtype=p.dtype, generator=generator) - 0.5)
        else:
            p.fill_(seed % 1000)
    module.norm.running_var += 1
    if not spare:
        module.spare = None
    return module


def _loss(model, X, y, rows, k):
    """Return the sum of a shard's own losses, times k / rows of the minibatch.

    Then the mean over ranks of its gradient is that of the minibatch's mean loss.
    """
    return ((model(X) - y) ** 2).sum() * k / rows


def _state(module):
    """Return all parameters and buffers by name, tied ones under both names."""
    # not state_dict, which leaves out buffers that are not to be saved
    return {name: tensor.detach().double().flatten().clone() for name, tensor in
            [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]}


def _sizes(case):
    """Return {name: numel} of each parameter that wants a gradient, in order."""
    return {name: p.numel() for name, p in
            _network(0, case.spare).named_parameters() if p.requires_grad}


def _draw(random, spare=False, backwards=(1,) * 5, equal=False):
    """Yield a case for each world size.

    spare: some parameters have no gradient on some ranks, or on all. backwards: how
    many, step by step. equal: the ranks' networks are drawn from the same seed.
    """
    for k in (1, 2, 3):
        steps = []
        for passes, count in zip(UNEVEN if spare else UNEVEN[:1] * 5, backwards):
            rows = [random.sample(range(1, 6), k) for _ in range(count)]
            shards = [[_batch(random, part[rank], passes(rank, k - 1)) for part in rows]
                      for rank in range(k)]
            steps.append(SimpleNamespace(shards=shards, rows=sum(map(sum, rows)),
                                         arguments=(), interrupted=False))
        seeds = random.sample(range(2**32), k)
        yield SimpleNamespace(k=k, lr=random.uniform(0.1, 0.2), spare=spare,
                              steps=steps, seeds=seeds[:1] * k if equal else seeds)


def _batch(random, rows, passes):
    X = rand(random, rows, 5)
    X[:, 0] = -X[:, 0].abs()
    X[0, 0] *= -1 if passes else 1
    return X, rand(random, rows, 2)


def _whole(step):
    """Return the minibatch of a step, unsplit."""
    return map(torch.cat, zip(*sum(step.shards, [])))


def _train(case, wrap, after):
    """Train, in a rank, what `wrap` returns; after a step's last backward `after`."""
    rank, steps = dist.get_rank(), []
    module = _network(case.seeds[rank], case.spare)
    params = list(module.parameters())
    model = wrap(module)
    start = _state(module)
    for step in case.steps:
        *alone, last = step.shards[rank]
        kept = []
        with watched() as quiet:
            if alone:
                with model.no_sync():
                    for X, y in alone:
                        _loss(model, X, y, step.rows, case.k).backward()
                        kept.append(_gradients(module))
            swallowed = step.interrupted and _swallows(model.no_sync())
        loss = _loss(model, *last, step.rows, case.k)
        with watched() as seen:
            loss.backward()
            after(module, *step.arguments)
        _sgd(params, case.lr)
        steps.append({"alone": kept, "swallowed": swallowed, "quiet": _sent(quiet),
                      "messages": _sent(seen), "weights": _state(module)})
    return {"start": start, "steps": steps}


def _gradients(module):
    return {name: None if p.grad is None else p.grad.flatten().clone()
            for name, p in module.named_parameters() if p.requires_grad}


def _swallows(block):
    try:
        with block:
            raise InterruptedError  # what ends a block half-way
    except InterruptedError:
        return False
    return True


def _sent(calls):
    return [call for call in calls if call != "barrier"]  # which sends no numbers


@torch.no_grad()
def _sgd(params, lr):
    # torch's own would first import its compiler, in each rank that is forked anew
    for p in params:
        if p.grad is not None:
            p -= lr * p.grad
            p.grad = None


def _itself(module, *_):
    return module


def _called(answer, module):
    answer(module)
    return module


def _ranks(case, wrap=_itself, after=_itself):
    """Return what each rank returns, and None; or None and why it does not."""
    results, error = attempt(partial(_train, case, wrap, after), case.k, SECONDS)
    return results, failed(
        f"{so_many(case.k, 'rank')}, {len(case.steps)} steps of SGD", error,
        "weights from every rank", {
            "a parameter has gradient None on a rank whose rows did not use it: that "
            "counts as zero": "'NoneType'",
            "what is frozen wants no gradient, and so takes no hook":
                "hook on a tensor that doesn't require grad",
            "all ranks must call the same collectives in the same order: those who "
            "receive call broadcast, too, and a gradient may be None on one of them":
                case.k > 1 and WAITED})


@exercise("ps4/start_equal", points=3)
def start_equal(random, start_equal):
    """Let ranks that begin differently start equal; each then trains on all rows."""
    for case in _draw(random):
        for step in case.steps:
            step.shards = [[tuple(_whole(step))]] * case.k
            step.rows *= case.k
        ranks, message = _ranks(case, partial(_called, start_equal))
        yield message
        yield from _begin(case, ranks, "start_equal")
        given = f"{so_many(case.k, 'rank')}, each training on all rows"
        for number, (_, _, after) in enumerate(_alone(case)):
            for name, wanted in after.items():
                yield _some(
                    given, f"{name} on every rank after step {number + 1}",
                    [rank["steps"][number]["weights"][name] for rank in ranks],
                    [wanted] * case.k, {
                        "the optimizer was made before: it holds the old tensors. "
                        "Write into them, and leave what is frozen or tied so": True})


@exercise("ps4/average_gradients", points=4)
def average_gradients(random, average_gradients):
    """Train on every rank's own rows; average after each backward."""
    for case in _draw(random, spare=True, equal=True):
        yield from _steps(case, _one_each, after=average_gradients)


@exercise("ps4/average_in_buckets", points=4)
def average_in_buckets(random, average_in_buckets):
    """Train as above, with another size of bucket in each step."""
    for case in _draw(random, spare=True, equal=True):
        # each alone; exactly full; with room left; exactly full; one for all
        for step, count in zip(case.steps, [random.randint(8, 13), 19,
                                            random.randint(57, 67), 56,
                                            random.randint(147, 999)]):
            step.arguments = [8 * count]
        yield from _steps(case, _in_buckets, after=average_in_buckets)


@exercise("ps4/average_in_hooks", points=3)
def average_in_hooks(random, average_in_hooks, fewest=1):
    """Train as above; only before the first step is the answer called."""
    for case in _draw(random, equal=True):
        if case.k >= fewest:
            yield from _steps(case, _one_each, partial(_called, average_in_hooks))


@exercise("ddp_by_hand/hook", seconds=20)
def on_several_ranks(random, average_when_ready):
    """Ask for the same, without the case of one rank."""
    return average_in_hooks(random, average_when_ready, fewest=2)


def parts():
    """Return what `DDP` is judged with: ranks that start equal."""
    def start_equal(module):
        for part in [*module.parameters(), *module.buffers()]:
            dist.broadcast(part.detach(), src=0)
    return {"start_equal": start_equal}


@exercise("ps4/DDP", points=4, parts=parts)
def ddp(random, DDP):
    """Wrap differing modules; train with several backwards to a step."""
    for case in _draw(random, backwards=(1, 3, 1, 2, 3)):
        case.steps[2].interrupted = True
        yield from _steps(case, _quiet, DDP)


def _steps(case, messages, wrap=_itself, after=_itself):
    """Compare start, messages and weights of a training, step by step.

    messages(case, number, steps, own): of step `number`, given what each rank returns
    for it and has as gradients.
    """
    ranks, message = _ranks(case, wrap, after)
    yield message
    if messages is _quiet:
        yield from _begin(case, ranks, "DDP(module)")
    for number, truth in enumerate(_alone(case)):
        steps = [rank["steps"][number] for rank in ranks]
        yield from messages(case, number, steps, truth[1])
        yield from _weights(case, number, steps, truth)


def _alone(case):
    """Yield for each step: the state before, each rank's gradients, the state after.

    The gradients: for each rank a list, with a dict of tensors for each backward.
    """
    module = _network(case.seeds[0], case.spare)
    for step in case.steps:
        before = _state(module)
        own = [[_grads(module, X, y, step.rows, case.k) for X, y in shard]
               for shard in step.shards]
        whole = _grads(module, *_whole(step), step.rows, 1)
        with torch.no_grad():
            for name, p in module.named_parameters():
                p -= case.lr * whole[name].view(p.shape)
        yield before, own, _state(module)


def _grads(module, X, y, rows, k):
    """Return flat gradients by the names that `_state` uses, zeros for none."""
    grads = {name: 0.0 * values for name, values in _state(module).items()}
    wanting = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(_loss(module, X, y, rows, k), list(wanting.values()),
                                materialize_grads=True)
    grads.update((name, grad.flatten()) for name, grad in zip(wanting, found))
    grads["again.weight"] = grads["middle.weight"]
    return grads


def _begin(case, ranks, called):
    """Yield how networks after `called`, at the start, are not rank 0's."""
    k = case.k
    own = [_state(_network(seed, case.spare)) for seed in case.seeds]
    buffers = [name for name, _ in _network(0).named_buffers()]
    for name in sorted(own[0], key=buffers.__contains__):  # these last
        got, mine = ([state[name] for state in states] for states in (
            [rank["start"] for rank in ranks], own))
        kind = ("buffers are sent too" if name in buffers else
                "frozen weights are sent too" if name == "frozen.weight" else
                "was it sent? And written into the parameter?")
        yield _some(so_many(k, "rank"), f"{name} on every rank after {called}", got,
                    [mine[0]] * k, {
            f"every rank keeps its own: {kind}": mine,
            "these are rank 1's; rank 0's are wanted": mine[1:2] * k,
            "this is the mean; rank 0's are wanted": [sum(mine) / k] * k,
            "this is the sum; rank 0's are wanted": [sum(mine)] * k,
            "rank 0's own numbers must stay as they are":
                not close(got[0], numbers(mine[0])),
            "some ranks keep their own": True})


def _one_each(case, number, steps, _):
    """Compare with an all-reduce for each parameter."""
    sizes = _sizes(case)
    wanted = list(sizes.values())
    for rank, step in enumerate(steps):
        got = step["messages"]
        left_out = [name for name, numel in sizes.items() if numel not in got]
        if sorted(map(str, got)) == sorted(map(str, wanted)):
            got = wanted  # in any order
        yield about(f"rank {rank} of {case.k}, step {number + 1}")(
            "numbers in each all-reduce, in any order", got, wanted, {
                "a no_sync block that ended in an error before this step is still in "
                "force: use try and finally": case.steps[number].interrupted,
                UNNAMED: [],
                "of dist, all_reduce is all that is needed":
                    any(isinstance(size, str) for size in got),
                f"{FROZEN} is the frozen weight: it wants no gradient": FROZEN in got,
                f"{TIED} is the tied weight: two layers share one parameter, which is "
                "sent once": got.count(TIED) == 2 and len(got) == len(wanted) + 1,
                "all hooks reduce the same parameter: use the hook's argument":
                    len(got) == len(wanted) and len(set(got)) == 1,
                "these are packed; here each gradient is sent by itself":
                    [sum(wanted)],
                "a gradient that is None is sent too, as zeros":
                    bool(left_out) and {"side.weight", "spare.weight"} >= {*left_out},
                f"left out: {', '.join(left_out)}": bool(left_out),
                "some are sent more than once": len(got) > len(wanted)})


def _in_buckets(case, number, steps, _):
    """Compare with an all-reduce for each bucket, the last layer's first."""
    cap, = case.steps[number].arguments
    numels = list(_sizes(case).values())[::-1]
    wanted = _pack(numels, cap)
    for rank, step in enumerate(steps):
        got = step["messages"]
        more = sum(size for size in got if isinstance(size, int)) - sum(numels)
        yield about(
            f"rank {rank} of {case.k}, step {number + 1}, bucket_bytes {cap}, float64 "
            f"gradients of {numels} numbers (last first)")(
            "numbers in each all-reduce", got, wanted, {
                UNNAMED: [],
                "one all-reduce for each parameter: pack them first": numels,
                "one bucket for all": [sum(numels)],
                "the last parameter's gradient is packed first":
                    _pack(numels[::-1], cap),
                "the last bucket has to be sent too, full or not": wanted[:-1],
                "the first bucket is left out": wanted[1:],
                "these buckets close once they are full; close a bucket before it "
                "would hold too much": _pack(numels, cap, closes=True),
                "exactly so many bytes still fit": _pack(numels, cap - 1),
                "bucket_bytes counts bytes: a number has 8": _pack(numels, cap * 8),
                "bucket_bytes counts bytes, and a float64 has 8 of them, not 4":
                    _pack(numels, cap * 2),
                "a gradient that is None is packed too, as zeros":
                    _pack([numel for numel in numels if numel != SPARE], cap),
                f"{FROZEN} more than wanted is the frozen weight": more == FROZEN,
                f"{TIED} more than wanted is the tied weight, which is sent once":
                    more == TIED})


def _pack(numels, cap, closes=False):
    """Return how many numbers are in each bucket of at most `cap` bytes.

    closes: buckets close once they hold the cap or more, as those of the lesson.
    """
    buckets, room = [], 0
    for numel in numels:
        if room <= 0 or (room < numel and not closes):
            buckets.append(0)
            room = cap / 8
        buckets[-1] += numel
        room -= numel
    return buckets


def _quiet(case, number, steps, own):
    """Compare with nothing in no_sync, and gradients there with their sums."""
    for rank, step in enumerate(steps):
        given = f"rank {rank} of {case.k}, step {number + 1}"
        say = about(given)
        yield say("a no_sync block raised InterruptedError: is the error lost?",
                  step["swallowed"], False, {
            "an error that ends the block must come out of it: finally without except, "
            "and no return in it": True})
        yield say("numbers in each all-reduce in no_sync", step["quiet"], [], {
            "in no_sync nothing is sent": True})
        for name in _sizes(case):
            parts = [part[name] for part in own[rank][:-1]]
            yield _some(given, f"gradient of {name} after each backward in no_sync",
                        [grads[name] for grads in step["alone"]],
                        list(accumulate(parts)), {
                "gradients add up, they do not replace one another": parts,
                "in no_sync a gradient stays as backward has left it": True})
    yield from _one_each(case, number, steps, own)


def _weights(case, number, steps, truth):
    """Yield how the weights after step `number` are not what `_alone` yields."""
    before, own, after = truth
    k, lr = case.k, case.lr
    rows = [sum(len(X) for X, _ in shard) for shard in case.steps[number].shards]
    shuffled = all(close(_moved(before, step["weights"]), _moved(before, after))
                   for step in steps)
    for name, wanted in after.items():
        parts = [[part[name] for part in shard] for shard in own]
        idle = [rank for rank, shard in enumerate(parts) if not sum(shard).any()]
        given = f"{so_many(k, 'rank')} with {rows} rows, lr {lr:.3f}"
        if name == "side.weight" and idle:
            given += f" (no gradient on rank {', '.join(map(str, idle))}: None)"
        mine = [step["weights"][name] for step in steps]
        yield _some(given, f"{name} on every rank after step {number + 1}", mine,
                    [wanted] * k, {
            "the right numbers in the wrong places: cut a bucket into pieces in the "
            "order in which it was packed": shuffled,
            **_misunderstood(mine, before[name], lr, parts, idle)})


def _moved(before, after):
    """Return by how much each number has moved, sorted."""
    return sorted(new - old for name in before for new, old in zip(
        numbers(after[name]), numbers(before[name])))


def _misunderstood(mine, start, lr, parts, idle):
    """Return hints: a text, and a truth value or the weights that it would explain.

    parts: for each rank the gradients of its backwards, as `_alone` yields them.
    """
    k, grads = len(parts), [sum(shard) for shard in parts]
    mean, moved = sum(grads) / k, start.new_tensor(mine) - start
    last = sum(shard[-1] for shard in parts) / k
    factor = times(moved[0], -lr * mean)
    summed = (moved - (k - 1) * start).abs().sum(1) < moved.abs().sum(1) / 2

    def stepped(*grads):  # one for all, or one a rank
        return [start - lr * grad for grad in grads] * (k // len(grads))
    return {
        "what was added up in no_sync is lost": stepped(last),
        "only the last backward's gradient is averaged: what each rank had added up "
        "before has to be, too": stepped(*(last + sum(shard[:-1]) for shard in parts)),
        "divided by the number of backwards: the loss has seen to that":
            stepped(mean / len(parts[0])),
        "what was added up in no_sync was divided by 2": stepped((last + mean) / 2),
        "no row's loss depends on these numbers, and yet they have moved":
            len(idle) == k,
        "nothing has moved": stepped(0 * mean),
        "the parameter itself was summed over ranks; sum its gradient, p.grad":
            k > 1 and bool(summed.all()),
        "p was averaged in place of p.grad": stepped(start),
        "every number has moved by lr: only the sign is left": stepped(mean.sign()),
        "every rank stepped with its own gradient: the mean must be in p.grad, where "
        "a hook is handed the parameter p": stepped(*grads),
        "the mean has to go to ranks that had no gradient, too":
            stepped(*(0 * mean if rank in idle else mean for rank in range(k))),
        "ranks that had no gradient count in the mean, as zeros":
            stepped(sum(grads) / max(1, k - len(idle))),
        "this is the sum over ranks; the mean is wanted": stepped(mean * k),
        "divided by the number of ranks twice": stepped(mean / k),
        "every rank has rank 0's gradient; the mean is wanted": stepped(grads[0]),
        "this is the largest of the ranks' numbers; the mean is wanted":
            stepped(torch.stack(grads).max(dim=0).values),
        "the last rank is left out": stepped(mean - grads[-1] / k),
        "the ranks differ: the same mean belongs on all": unequal(mine),
        f"the step is {factor:.4g} times as long as it should be: divide by the "
        "number of ranks, and by nothing else": factor == factor}


def _some(given, what, got, wanted, hints):
    """Compare lists of numbers, one a rank; show three of each, hint from them all."""
    got, wanted = numbers(got), numbers(wanted)
    if close(got, wanted):
        return None
    hints = {ROUNDED: close(got, wanted, 1e-5), **hints}
    if [len(part) for part in got] != [len(part) for part in wanted]:
        return about(given)(what, got, wanted, hints)
    first = min(i for mine, right in zip(got, wanted) for i in range(len(right))
                if not close(mine[i], right[i]))
    cut = slice(first, first + 3)
    what += f", from its number {first + 1} of {len(wanted[0])} on" if first else ""
    return about(given)(what, [part[cut] for part in got],
                        [part[cut] for part in wanted], hints, whole=got)
