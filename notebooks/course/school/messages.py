"""Exercises of lessons: ranks that exchange tensors, sum them, decide together."""

from contextlib import contextmanager
from math import prod
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from course.school.checks import about, close, exercise, numbers, so_many
from course.school.draws import describe, rand, summed
from course.school.ranks import (
    COLLECTIVES,
    WAITED,
    Roll,
    attempt,
    calls_of_collectives,
    failed,
)


@exercise("processes/exchange", seconds=60)
def exchange(random, exchange):
    """Let two ranks exchange tensors of several shapes, one after the other.

    Who goes first must be settled in any pair: also without rank 0, also if both are
    even.
    """
    shapes = [(3,), (), (2, random.randint(2, 4)), (random.randint(2**18, 2**19),)]
    for k, pair in (2, [0, 1]), (3, [2, 1]), (3, [2, 0]):
        yield from _exchange_shapes(random, exchange, k, pair, shapes)


def _exchange_shapes(random, exchange, k, pair, shapes):
    """Let ranks `pair` of k exchange tensors of these shapes."""
    held = []  # for each shape {rank: its tensor}
    for shape in shapes:
        held.append({rank: rand(random, *shape) for rank in pair})

    def work():
        rank, found = dist.get_rank(), []
        if rank not in pair:
            return found
        for tensors in held:
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
            "of them receive first, or start with isend. (An irecv counts as well, if "
            "what it returns is kept and waited for.)": r"in i?send\b.*in i?send\b",
            "both ranks wait for each other: let one of them send first, whichever two "
            "they are, or both start with isend, keep what it returns (a message that "
            "nobody holds is not sent), receive, and wait for it "
            "last": r"waiting: .*(recv|wait|exchange).*in (recv|wait|exchange)",
            "gloo ends a rank whose tensor is not as large as what comes: receive into "
            "torch.empty_like(tensor)": "SIGABRT",
            "`other` says which rank it is, and only these two ranks take "
            "part": "waiting",
        },
    )
    for number, (shape, tensors) in enumerate(zip(shapes, held)):
        theirs, after = zip(*(results[rank][number] for rank in pair))
        mine = [_few(t) for t in tensors.values()]
        say = about(f"{who}, tensors of {so_many(prod(shape), 'number')} in float64")
        found, wanted = (
            [t["numbers"] for t in tensors if isinstance(t, dict)]
            for tensors in (theirs, mine[::-1])
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
                "a rank returned its own tensor: return the other's": any(
                    map(close, theirs, mine)
                ),
                "the numbers are right, their shape is not: receive into "
                "torch.empty_like(tensor)": close(found, wanted),
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


@exercise("processes/ring", cases=[4, 2, 5, 3, 1])
def ring(random, ring_allreduce, *, k):
    """Call it on every rank; note what else it uses."""
    held = rand(random, k, random.randint(1, 6))

    def work():
        own = held[dist.get_rank()].clone()
        with calls_of_collectives(names=COLLECTIVES) as calls, _receivers() as ranks:
            returned = ring_allreduce(own)
        return own, returned, calls, sorted(ranks)

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
            "every rank waits for a neighbour: start with isend, keep what it returns "
            "(a message that nobody holds is not sent), receive, and wait for it "
            "last": r"waiting: (rank \d+ in (i?recv|wait|ring_allreduce)\b(, )?)+$",
            "each rank sends as often as its neighbour on the right receives": WAITED,
        },
    )
    after, returned, calls, receivers = map(list, zip(*results))
    say = about(given)
    yield say(
        "collectives that each rank called",
        calls,
        [[]] * k,
        {"the ring is yours to build: use send and recv, isend and irecv alone": True},
    )
    yield from summed(held, after, after, returned)
    if any(receivers):  # else the sends could not be seen
        yield say(
            "ranks to which each rank sent",
            receivers,
            [[(rank + 1) % k] for rank in range(k)],
            {"each rank sends to its right: to rank + 1, and the last to rank 0": True},
        )


@contextmanager
def _receivers():
    """Yield a set, to which the ranks are added that this one sends to in the block."""
    ranks, real = set(), c10d.isend  # which send and batch_isend_irecv call, too

    def isend(tensor, dst=None, *args, **kwargs):
        ranks.add(kwargs.get("group_dst") if dst is None else dst)
        return real(tensor, dst, *args, **kwargs)

    with patch.object(c10d, "isend", isend), patch.object(dist, "isend", isend):
        yield ranks


@exercise("together/any_rank", seconds=60, cases=[(3, False), (2, True)])
def any_rank(random, any_rank, *, k, as_tensors):
    """Ask on every rank, with flags that are plain, then with such as isnan() makes."""
    middle = [[False, True, False], [True, True, False], [False, True, True]]
    asked = [[False] * k, [True] * k, *(middle if k == 3 else [[False, True]])]
    random.shuffle(asked)

    def work():
        flags = [case[dist.get_rank()] for case in asked]
        handed = [torch.tensor(flag) if as_tensors else flag for flag in flags]
        found = []
        with Roll() as roll:
            for flag in handed:
                answer = roll.call(any_rank, flag)
                if isinstance(answer, torch.Tensor) and answer.numel() == 1:
                    answer = answer.item()
                found.append([answer, roll.absent, len(roll.seen)])
        return list(zip(*found))

    results, error = attempt(work, k)
    kind = "tensors such as loss.isnan()" if as_tensors else "True or False"
    given = f"{so_many(k, 'rank')}, asked {len(asked)} times; the flags are {kind}"
    yield failed(given, error, "an answer on every rank")
    say = about(f"{given}: {asked}")
    answers, absent, calls = (list(zip(*lists)) for lists in zip(*results))
    yield say(
        "ranks that did not come to a collective, each time",
        list(map(max, absent)),
        [0] * len(asked),
        {
            "a collective is for all ranks: call it also on a rank whose flag is "
            "False": True
        },
    )
    yield _agreed(say, answers, asked, calls, as_tensors)


def _agreed(say, answers, asked, calls, as_tensors):
    """Compare the answers. calls: how many collectives each rank called each time."""

    def all_say(answer):
        return [[answer(flags)] * len(flags) for flags in asked]

    def as_bool(one):
        return bool(one) if isinstance(one, (int, float)) else one

    found = [list(map(as_bool, ranks)) for ranks in answers]
    return say(
        "what any_rank returned, a list for each time",
        found,
        all_say(any),
        {
            "return the answer, on every rank": None in found[0],
            "a list is true, whatever is in it: any(...) of it is the "
            "answer": isinstance(found[0][0], list),
            "this is always False, if flags are tensors: `flag is True` holds for True "
            "alone": as_tensors and all_say(lambda flags: False),
            "this is always False: all_reduce returns nothing, it writes into the "
            "tensor that it is handed": all_say(lambda flags: False),
            "this is True if exactly one says so: after a sum look whether it is above "
            "0": all_say(lambda flags: sum(flags) == 1),
            "this is rank 0's flag: ask all ranks": all_say(lambda flags: flags[0]),
            "only rank 0 has the answer: all_reduce gives it to all": [
                [any(flags), *flags[1:]] for flags in asked
            ],
            "the ranks have talked, but this is each rank's own flag: read the tensor "
            "that the collective wrote into, with async_op=True after wait()": asked
            if min(map(min, calls))
            else False,
            "this is each rank's own flag: ask the others, too": asked,
            "this is True only if all ranks say so: one is enough": all_say(all),
            "this is True only if most ranks say so: one is enough": all_say(
                lambda flags: sum(flags) > len(flags) / 2
            ),
        },
    )
