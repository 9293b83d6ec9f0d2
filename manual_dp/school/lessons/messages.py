"""The exercises of lesson 08: a group, two ranks that exchange tensors, a ring.

    open_group, exchange, ring    run an answer on ranks
    EXERCISES                     with what is drawn, and what is right
"""

import os
import tempfile
from contextlib import contextmanager
from math import prod
from unittest.mock import patch

import torch
import torch.distributed as dist

from manual_dp.school.exercise import (
    WAITED,
    Exercise,
    about,
    differ,
    each,
    failed,
    so_many,
)
from manual_dp.school.sums import describe, judge_everywhere
from manual_dp.school.tools.plain import plainly, random_numbers, tensor
from manual_dp.school.tools.ranks import COLLECTIVES, attempt, watched

SECONDS = 10  # that all ranks have: plenty, unless they wait for one another


def open_group(case, open_group):
    """Close the launcher's group, let every rank open one by the answer, and use it."""
    def work():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        open_group(path, rank, world_size)
        if not dist.is_initialized():
            return {"open": False}
        total = tensor(case["tensors"][rank])
        dist.all_reduce(total)
        return {"open": True, "who": [dist.get_rank(), dist.get_world_size()],
                "backend": dist.get_backend(), "met": os.path.exists(path),
                "sum": total}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store"
        return attempt(work, len(case["tensors"]), SECONDS)


def _draw_group(random):
    for world_size in (2, 3):
        yield {"tensors": random_numbers(random, world_size, 2)}


def _judge_group(case, got):
    k = len(case["tensors"])
    ranks = list(range(k))
    given = f"{k} ranks; each calls open_group(path, rank, {k})"
    yield failed(given, got, "a group that is open on every rank", [
        ("a rank waits for others that do not come: every rank opens the group, with "
         "the same path, the same world size and a rank of its own", WAITED)])
    say, found = about(given), got["ranks"]
    yield say("is a group open afterwards?", each(found, "open"), [True] * k, [
        ("no group is open: call dist.init_process_group", True)])
    who = each(found, "who")
    yield say("dist.get_rank() and dist.get_world_size() on each rank", who,
              [[rank, k] for rank in ranks], [
        ("every rank opened a group of its own, in which it is alone", [[0, 1]] * k),
        ("these are not the ranks that were handed over", True)])
    yield say("dist.get_backend() on each rank", each(found, "backend"), ["gloo"] * k, [
        ('say which backend: the first argument, "gloo"', True)])
    yield say("is there a file at `path`?", each(found, "met"), [True] * k, [
        ("the store is the file at `path`: dist.FileStore(path, world_size)", True)])
    yield say(f"ranks hold {case['tensors']}; after an all-reduce", each(found, "sum"),
              [tensor(case["tensors"]).sum(0)] * k)


def exchange(case, exchange):
    """Let two ranks exchange tensors of several shapes, one after the other."""
    def work():
        rank, found = dist.get_rank(), []
        for shape, seed in zip(case["shapes"], case["seeds"]):
            if rank not in case["pair"]:
                break
            mine = _drawn(shape, seed + rank)
            theirs = exchange(mine, sum(case["pair"]) - rank)
            found.append({"theirs": _few(theirs), "mine": _few(mine)})
        return found
    return attempt(work, case["world_size"], SECONDS)


def _drawn(shape, seed):
    return torch.rand(shape, dtype=torch.float64,
                      generator=torch.Generator().manual_seed(seed))


def _few(value):
    """Return a tensor's shape and five of its numbers, or what else it is."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    flat = value.detach().flatten()
    return {"shape": list(value.shape),
            "numbers": flat[::max(1, len(flat) // 4)].tolist()}


def _draw_exchange(random):
    shapes = [(3,), (), (2, random.randint(2, 4)), (random.randint(2**18, 2**19),)]
    for world_size, pair in (2, [0, 1]), (3, [2, random.randint(0, 1)]):
        yield {"world_size": world_size, "pair": pair, "shapes": shapes,
               "seeds": [random.randrange(2**32) for _ in shapes]}


def _judge_exchange(case, got):
    pair = case["pair"]
    who = f"ranks {pair[0]} and {pair[1]} of {case['world_size']}"
    yield failed(f"{who}, tensors of shape {tuple(case['shapes'][0])} and others", got,
                 "the other's tensor on both", [
        ("both ranks wait in send, which ends when the other receives: let one of them "
         "receive first, or start with isend", r"in i?send\b.*in i?send\b"),
        ("both ranks wait for a message that nobody has sent: one of them must send "
         "first; and what isend returns must be kept, and waited for: a message that "
         "nobody holds is not sent",
         r"waiting: .*(recv|wait|exchange).*in (recv|wait|exchange)"),
        ("`other` says which rank it is, and only these two ranks take part", ".")])
    for number, (shape, seed) in enumerate(zip(case["shapes"], case["seeds"])):
        found = [got["ranks"][rank][number] for rank in pair]
        drawn = [_drawn(shape, seed + rank) for rank in pair]
        mine, summed = [_few(t) for t in drawn], _few(sum(drawn))
        say = about(f"{who}, tensors of {so_many(prod(shape), 'number')} in float64")
        yield say("the tensor that each handed over, afterwards", each(found, "mine"),
                  mine, [("the tensor that was handed over has changed: receive into "
                          "one of your own, torch.empty_like(tensor)", True)])
        theirs = each(found, "theirs")
        zeros = [value for value, right in zip(theirs, mine[::-1])
                 if value == {**right, "numbers": [0] * len(right["numbers"])}]
        yield say("what each returned", theirs, mine[::-1], [
            ("return the tensor that came", "a NoneType" in theirs),
            ("return the tensor itself", any(isinstance(t, str) for t in theirs)),
            ("this is the rank's own tensor: return the other's", mine),
            ("this is the sum of both: return the other's alone", [summed] * 2),
            ("nothing has arrived yet: receive on both ranks, and wait() for what "
             "irecv returns before you use the numbers", bool(zeros))])


def ring(case, ring_allreduce):
    """Call it on every rank; note what else it uses, and whom each rank sends to."""
    def work():
        own = tensor(case["tensors"][dist.get_rank()])
        with watched(names=COLLECTIVES) as calls, _receivers() as receivers:
            returned = ring_allreduce(own)
        return {"tensor": own, "returned": plainly(returned), "calls": calls,
                "receivers": sorted(receivers)}
    return attempt(work, len(case["tensors"]), SECONDS)


@contextmanager
def _receivers():
    """Yield a set; while the block runs, each send adds the rank that it goes to."""
    receivers, real = set(), dist.isend

    def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
        receivers.add(group_dst if dst is None else dst)
        return real(tensor, dst, group, tag, group_dst)
    # in both places: torch's own send, and its check of a P2POp, look at the second
    with patch.object(dist, "isend", isend), \
            patch.object(dist.distributed_c10d, "isend", isend):
        yield receivers


def _draw_ring(random):
    for world_size in (4, 2, 5, 3, 1):
        yield {"tensors": random_numbers(random, world_size, random.randint(1, 6))}


def _judge_ring(case, got):
    k, given = len(case["tensors"]), describe(case)
    yield failed(given, got, "the sum on every rank", [
        ("every rank waits in send, which ends when its neighbour receives: start with "
         "isend, then receive, then wait", r"waiting: (rank \d+ in i?send\b(, )?)+$"),
        ("every rank waits for a message that nobody has sent: start with isend, keep "
         "what it returns, and wait for that: a message that nobody holds is not sent",
         r"waiting: (rank \d+ in (i?recv|wait|ring_allreduce)\b(, )?)+$"),
        ("each rank sends as often as its neighbour on the right receives", WAITED)])
    calls = each(got["ranks"], "calls")
    yield differ(f"{given}; collectives that each rank called", calls, [[]] * k, [
        ("the ring is yours to build: use send and recv, isend and irecv alone", True)])
    held, returned = (each(got["ranks"], name) for name in ("tensor", "returned"))
    yield from judge_everywhere(
        case, {"tensors": held, "list": held, "returned": returned},
        where="the tensor on rank {1}")
    to, right = each(got["ranks"], "receivers"), [[(rank + 1) % k] for rank in range(k)]
    if to != [[(rank - 1) % k] for rank in range(k)]:  # the other way round
        yield differ(f"{given}; the ranks that each rank sends to", to,
                     right if k > 1 else [[]], [
            ("in a ring each rank sends to one neighbour, and all to the same side",
             True)])


EXERCISES = [
    Exercise("08/open_group", 0, _draw_group, _judge_group, 20),
    Exercise("08/exchange", 0, _draw_exchange, _judge_exchange, 20),
    Exercise("08/ring", 0, _draw_ring, _judge_ring, 20, answers=("ring_allreduce",)),
]
