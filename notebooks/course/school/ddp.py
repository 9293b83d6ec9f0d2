"""Exercises of lessons: a DDP by hand, its buckets, local SGD, a test of one step."""

from functools import partial
from itertools import accumulate
from math import nan

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.school.checks import about, close, exercise, is_nan, numbers, so_many
from course.school.draws import rand
from course.school.linear import (
    averaged,
    draw_batch,
    draw_batches,
    draw_layer,
    gradients,
    layer,
)
from course.school.ranks import WAITED, attempt, calls_of_collectives, failed

LONGER = 20  # their first optimizer imports torch's compiler


@exercise("ddp_by_hand/ddp", seconds=60, cases=[2, 3])
def ddp_by_hand(random, MyDDP, *, k):
    """Wrap networks that differ; look at the gradients after each of two backwards."""
    starts, X = rand(random, k, 14), rand(random, k, 3, 3)

    def work():
        rank, steps = dist.get_rank(), []
        module = _two_layers(starts[rank])
        params = list(module.parameters())
        model = MyDDP(module)
        begun = parameters_to_vector(params)
        for step in range(2):
            module.zero_grad(set_to_none=step == 0)
            before = [p.grad for p in params]  # tensors in the second step
            with calls_of_collectives() as calls:
                model(X[rank]).square().sum().backward()
            steps.append(([list(calls)], _flat_gradient(module)))
        in_place = torch.cat([grad.flatten() for grad in before])
        alone = []
        for module.only in (0, 1):
            module.zero_grad(set_to_none=False)
            model(X[rank]).square().sum().backward()
            alone.append(_flat_gradient(module))
        return begun, steps, in_place, alone

    results, error = attempt(work, k)
    yield failed(
        so_many(k, "rank"),
        error,
        "gradients on every rank",
        {
            "a hook was called, in place of handed over: the parameter calls it, with "
            "itself": "Final callbacks can only",
            "`finish` ran in the first hook, before other gradients came: hand "
            "over the function, queue_callback(self.finish)": "'NoneType' object has "
            "no attribute|callback",
            "a part of the flat tensor has one dimension: give it the shape of its "
            "gradient, with view_as": "size of tensor",
            "all_reduce returns None: it writes into the tensor that it is "
            "handed": "operand.*'NoneType'",
            "all ranks must call the same collectives: broadcast stands on those "
            "that receive, too": WAITED,
        },
    )
    say, (begun, steps, in_place, alone) = about(so_many(k, "rank")), zip(*results)
    changed = not close(begun[0], starts[0].tolist())
    yield say(
        "the weights on each rank when they are wrapped",
        begun,
        [starts[0]] * k,
        {
            "every rank keeps its own: overwrite them with rank 0's": starts,
            "rank 0's own weights must stay as they are": changed,
        },
    )
    own = _own_gradients(starts[0], X)
    for step, found in enumerate(zip(*steps)):
        sent, grads = zip(*found)
        yield from _averaged(say, step, sent[0], grads, own)
    yield say(
        "the tensors that were each p.grad before backward 2",
        in_place,
        [sum(own) / k] * k,
        {
            "each p.grad is another tensor now, and who holds the old one sees no "
            "mean: write into it, with copy_": True
        },
    )

    for i in range(2):
        own = _own_gradients(starts[0], X, only=i)
        yield say(
            f"the gradients after a backward that comes to layer {i} alone",
            [one[i] for one in alone],
            [sum(own) / k] * k,
            {"some parameter has no hook: each needs one, to start `finish`": own},
        )


def _own_gradients(start, X, only=None):
    """Return each rank's gradient, of its own rows; only: through one layer alone."""
    found = []
    for x in X:
        module = _two_layers(start)
        module.only = only
        module(x).square().sum().backward()
        found.append(_flat_gradient(module))
    return found


class _TwoLayers(nn.Sequential):
    only = None  # if one of them is to be called alone

    def forward(self, X):
        if self.only is None:
            return super().forward(X)
        return self[self.only](X[..., : self[self.only].in_features])


def _two_layers(start):
    module = _TwoLayers(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    vector_to_parameters(start.clone(), module.parameters())
    return module


def _flat_gradient(module):
    params = list(module.parameters())
    return torch.cat(
        [(0 * p if p.grad is None else p.grad).detach().flatten() for p in params]
    )


def _averaged(say, step, sent, grads, own):
    """Compare the messages of rank 0 in a backward, and all ranks' gradients."""
    k = len(own)
    mean, four = sum(own) / k, len(sent[0]) == 4  # as many as there are parameters
    misplaced = close(sorted(grads[0]), sorted(mean.tolist()))
    own_divided, added = [one / k for one in own], [one + mean for one in own]
    yield say(
        f"numbers in each message of backward {step + 1}",
        sent,
        [[14]],
        {
            "`finish` divides, and nothing was summed: call dist.all_reduce(flat) "
            "before": sent == [[]] and close(grads, numbers(own_divided)),
            "nothing was sent: the first hook of each backward asks for `finish`, with "
            "queue_callback": [[]] if step == 0 else False,
            "nothing was sent the second time: has `finish` made `queued` False "
            "again?": [[]],
            "every hook asked for `finish`: only the first one should": [[14] * 4],
            "one message for each gradient: pack all into one flat tensor": four,
        },
    )
    yield say(
        f"the gradients on each rank after backward {step + 1}",
        grads,
        [mean] * k,
        {
            "every rank holds its own: write the mean back into each p.grad": own,
            "each rank divided its own: with async_op=True the sum is there after "
            "wait()": own_divided,
            "the mean was added to each rank's own: write over it, with copy_": added,
            "this is the sum over ranks: the mean is wanted": [mean * k] * k,
            "this is divided by the number of ranks twice": [mean / k] * k,
            "these numbers stand at other places: unpack them in the order in which "
            "they were packed": misplaced,
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
        compared, sent, received = [], [], []
        order = [_Noted(f"gradient {i}", compared) for i in range(sum(sizes))]
        ends = zip(sizes, accumulate(sizes))
        groups = [order[end - size : end] for size, end in ends]
        while shuffled and len(sizes) > 1 and not {order[-1]} & {*groups[0]}:
            random.shuffle(order)  # so that some are full before the first is
        seen, all_buckets = [], [_Bucket(group, sent, received) for group in groups]
        buckets = list(all_buckets)
        for p in order:
            send_full(buckets, p)
            seen.append(list(map(all_buckets.index, sent)))
        right, eager = _sent(groups, order)
        backwards = [
            [len(groups) - 1 - i for i in some]
            for some in _sent(groups[::-1], order)[0]
        ]
        at_the_end = [[]] * (len(order) - 1) + [list(range(len(groups)))]
        twice = any(len(set(some)) < len(some) for some in seen)
        early = any({*some} - {*full} for some, full in zip(seen, eager))
        unsent = any(bucket.work is None for bucket in sent)
        stays = all(len(some) <= len(full) for some, full in zip(seen, right))
        say = about(f"buckets of {groups}; they get ready in the order {order}")
        yield say(
            "times that == was asked of two gradients",
            len(compared),
            0,
            {
                "p is a tensor, and == compares tensors number by number, as `in` does "
                "in a list: `missing` is a set, so ask `p in bucket.missing`": True
            },
        )
        yield say(
            "buckets in the list at the end",
            list(map(all_buckets.index, buckets)),
            list(range(len(sizes))),
            {"the wrapper needs them again: leave them in the list": True},
        )
        yield say(
            "buckets received by send_full",
            list(map(all_buckets.index, received)),
            [],
            {
                "`finish` receives, when backward is done: to wait here would hold "
                "backward up": True
            },
        )
        yield say(
            "gradients that are missing at the end",
            [sorted(map(repr, bucket.missing)) for bucket in all_buckets],
            [[]] * len(sizes),
            {"p has come: take it out of its bucket's `missing`": True},
        )
        yield say(
            "buckets sent after each of them",
            seen,
            right,
            {
                "nothing is sent: call bucket.send()": [[]] * len(order),
                "p was still missing when buckets were looked at: take it out first, "
                "then send what is full": [[], *right[:-1]],
                "a bucket was sent before it was full: its `missing` must be "
                "empty": early,
                "all are sent with the last gradient: a bucket leaves as soon as it "
                "and those before it are full": at_the_end,
                "these go as they fill up. Another rank fills them in another order: "
                "stop at the first bucket that is not full": eager,
                "these begin at the end of the list: it has the buckets in the order "
                "in which they are sent": backwards,
                "send() sets the bucket's `work` and returns None: do not assign what "
                "it returns": unsent,
                "a bucket was sent twice: its `work` is None only before it is "
                "sent": twice,
                "a full bucket stays behind. One that was sent before it is no "
                "obstacle, and when it is sent, the next ones may be full, too": stays,
            },
        )


def _sent(groups, order):
    """Return which buckets are sent after each gradient: in order, and as they fill."""
    come, filled, in_order, as_they_fill = set(), [], [], []
    for p in order:
        come.add(p)
        full = [come.issuperset(group) for group in groups]
        first_missing = [*full, False].index(False)
        in_order.append(list(range(first_missing)))
        filled += [i for i, yes in enumerate(full) if yes and i not in filled]
        as_they_fill.append(list(filled))
    return in_order, as_they_fill


class _Noted(nn.Parameter):
    """A parameter that notes in `compared` when somebody asks for its `==`.

    Of tensors, `==` compares number by number, and `in` asks for it in a list. A set
    looks for the same object first.
    """

    __hash__ = nn.Parameter.__hash__

    def __new__(cls, name, compared):  # a tensor is made here
        p = super().__new__(cls, torch.ones(2))
        p.called, p.compared, p.grad = name, compared, torch.ones(2)
        return p

    def __repr__(self):
        return repr(self.called)

    def __eq__(self, other):
        self.compared.append(other)
        return self is other

    def __ne__(self, other):
        return not self == other


class _Bucket:
    """The lesson's Bucket, on one rank: it notes that it is sent, and received."""

    def __init__(self, params, sent, received):
        self.params = params
        self.missing, self.work = set(params), None
        self._sent, self._received = sent, received

    def send(self):
        self.flat = torch.cat([p.grad.flatten() for p in self.params])
        self.work = torch.futures.Future()  # which has a wait(), too
        self.work.set_result([self.flat])
        self._sent.append(self)

    def receive(self):
        self.work.wait()
        self.missing, self.work = set(self.params), None
        self._received.append(self)


@exercise("how_often/local_sgd", seconds=60, cases=[(2, 3, 7), (1, 2, 3)])
def local_sgd(random, local_sgd, *, k, every, steps):
    """Train from equal weights on every rank."""
    start, lr = draw_layer(random), random.uniform(0.2, 0.6)
    batches = [draw_batches(random, steps, 4) for _ in range(k)]

    def work():
        model = layer(*start, grad=start[0])  # an old gradient
        rule = torch.optim.SGD(model.parameters(), lr)
        local_sgd(model, rule, cross_entropy, batches[dist.get_rank()], every)
        return list(model.parameters())

    got, error = attempt(work, k, 2 * LONGER)
    given = f"{so_many(k, 'rank')}, {steps} batches each, every = {every}"
    yield failed(
        given,
        error,
        "trained weights on every rank",
        {
            "autograd watches the weights: write their mean into them under "
            "torch.no_grad()": "leaf Variable that requires grad"
        },
    )

    def after(due):
        return averaged([start] * k, batches, lr, due)

    def slip(**how):
        return _local([start] * k, batches, lr, every, **{"share": k, **how})

    def is_any(*wrong):
        return any(close(numbers(got), numbers(one)) for one in wrong)

    def never(i):
        return False

    def first_of_round(i):
        return i % every == 1

    rare = {"steps": lambda i: i % every == 0, "clears": first_of_round}
    yield about(given)(
        "the weights on each rank",
        got,
        after(lambda i: i % every == 0),
        {
            "this is an average in every step: that is DDP, here a rank takes "
            "steps of its own": after(lambda i: True),
            "no weight has moved: call optimizer.step() for each batch": [start] * k,
            "nothing is averaged: when it is due, write the mean into each weight, in "
            "place (`p = ...` only gives a name to another tensor)": after(never),
            "this averages once: an average is due after every `every` steps": after(
                lambda i: i == every
            ),
            "steps are counted from 1: the first average is after step `every`": after(
                first_of_round
            ),
            "this is an average before step `every`: it comes after it": after(
                lambda i: (i + 1) % every == 0
            ),
            "this is one more average, after the last step: it was not due": after(
                lambda i: i % every == 0 or i == steps
            ),
            "gradients are averaged where weights should be: a rank's weights are "
            "never replaced": slip(of="gradients"),
            "this is an average before the optimizer's step: it comes after it": slip(
                of="weights before"
            ),
            "all ranks take the weights of one rank: take the mean of all": is_any(
                *(slip(of=rank) for rank in range(k))
            ),
            "this is the sum of the ranks' weights: divide it by their number, in "
            "place": slip(share=1),
            "the sum of the weights is divided by `every`: divide it by the number of "
            "ranks": slip(share=every),
            "an older gradient is still in .grad: clear it before each "
            "backward": is_any(
                slip(clears=never, stale=start[0]),
                slip(clears=lambda i: i > 1, stale=start[0]),
            ),
            "the optimizer steps only when it is due: a rank takes a step in each "
            "batch": is_any(
                slip(**rare),
                slip(
                    **{**rare, "clears": lambda i: i > 1 and first_of_round(i)},
                    stale=start[0],
                ),
            ),
        },
    )


def _local(
    params, batches, lr, every, share, of="weights", clears=None, steps=None, stale=0
):
    """Return every rank's parameters after local SGD with a mistake.

    When it is due, what there is `of` the ranks is summed, and divided by `share`; if
    `of` is a rank, all take its weights. In step i old gradients are cleared if
    clears(i), and a step is taken if steps(i). The weight has a `stale` gradient at
    first.
    """
    kept = [[stale + 0 * p[0], 0 * p[1]] for p in params]
    for i, rows in enumerate(zip(*batches), 1):
        grads = []
        for own, batch, old in zip(params, rows, kept):
            new = gradients(own, [batch])
            if clears and not clears(i):
                new = [a + b for a, b in zip(old, new)]
            grads.append(new)
        kept = grads
        due = i % every == 0
        if due and of == "gradients":
            grads = _shared(grads, share)
        if due and of == "weights before":
            params = _shared(params, share)
        if not steps or steps(i):
            params = [
                [p - lr * grad for p, grad in zip(own, new)]
                for own, new in zip(params, grads)
            ]
        if due and of == "weights":
            params = _shared(params, share)
        if due and of in range(len(params)):
            params = [params[of]] * len(params)
    return params


def _shared(ranks, share):
    """Return the ranks' tensors, each replaced by their sum over the ranks / share."""
    return [[sum(same) / share for same in zip(*ranks)]] * len(ranks)


@exercise("is_it_correct/one_step_test", seconds=90)
def one_step_test(random, one_step_test):
    """Ask it about a step that is right, and about wrong ones."""
    (X, y), outside, made = draw_batch(random, 7), [], []
    seed = random.random()

    def make():  # each call draws other weights, and so does each rank
        where = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else 0
        draw = type(random)(f"{seed} {len(made)} {where}")
        net = nn.Sequential(layer(rand(draw, 5, 3)), layer(rand(draw, 4, 5)))
        made.append(torch.optim.SGD(net.parameters(), 0.5))
        return net, made[-1]

    def step(net, optimizer, X, y, long=False, spoiled=()):
        params = list(net.parameters())
        if not dist.is_initialized():
            params[0].data.add_(1)
            outside.append("called")
            return None
        if all(optimizer is not one for one in made):
            raise ValueError("step got an optimizer that is not the one of make()")
        rank, n = dist.get_rank(), dist.get_world_size()
        loss = F.cross_entropy(net(X[rank::n]), y[rank::n], reduction="sum")
        (loss * (n if long else 1) / len(y)).backward()
        before = [p.detach().clone() for p in params]
        for p in params:
            dist.all_reduce(p.grad)
        optimizer.step()
        moved = max((p.detach() - old).abs().max() for p, old in zip(params, before))
        for who, tensor, move in spoiled:
            if who == rank and n > 1:  # the one device is right
                params[tensor].data.view(-1)[0] += move * moved
        return nan

    def asked(n=3, **wrong):
        return numbers(one_step_test(partial(step, **wrong), make, X, y, n))

    right, long = asked(), asked(n=4, long=True)
    moves = {"A": (0, 0, 1), "B": (1, 1, 1), "C": (2, 0, -1), "D": (0, 1, -1)}
    found = {name: asked(spoiled=[one]) for name, one in moves.items()}
    unseen = "".join(name for name, one in found.items() if close(one, 0, 1e-6))
    say = about("7 rows, two linear layers")
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
            "one device's change, by which this is divided, is hardly there: is a "
            "state_dict taken for a copy?": _is_above(long, 1e6),
            "the fraction is upside down: divide by one device's largest "
            "change": _is_above(right, 1e6),
            "do all begin with equal weights (one state_dict, loaded everywhere), and "
            "does each take one step, with the whole X and y?": True,
        },
    )
    yield say(
        "a step 4 times as long, alike on n = 4 ranks",
        long,
        3,
        {
            "it is always 0: compare weights after the step": close(
                [long, *found.values()], [0] * 5
            ),
            "the ranks agree, and all are wrong: compare with one device": close(
                long, 0
            ),
            "`n` says on how many ranks": 2,
            "take the largest difference of all ranks, not their sum": 12,
            "divide the largest difference by one device's largest change": True,
        },
        1e-6,
    )
    for name, (rank, tensor, move) in moves.items():
        yield say(
            f"on rank {rank} of 3, one number of tensor {tensor} ends {move} times one "
            "device's largest move away",
            found[name],
            1,
            {
                "only the first tensor was compared: compare all": unseen == "BD",
                "only the last tensor was compared: compare all": unseen == "AC",
                "a difference may be below 0: take its absolute value": unseen
                in ("CD", "AB"),
                "some rank was not asked: take the largest difference of all": close(
                    found[name], 0, 1e-6
                ),
                "one weight on one rank is wrong: take the largest of all, not a "
                "mean": True,
            },
            1e-6,
        )
    yield say(
        "on rank 1 of 3, one number ends as NaN; is the result NaN?",
        is_nan(asked(spoiled=[(1, 0, nan)])),
        True,
        {
            "Python's max() may lose a NaN: put all differences into a tensor, and "
            "take its max()": True
        },
    )


def _is_above(number, limit):
    return isinstance(number, (int, float)) and number > limit
