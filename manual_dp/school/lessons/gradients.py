"""Exercises of lesson 09: gradients in a bucket, and gradients that add up.

    bucket, accumulate    run an answer
    EXERCISES             with what is drawn, and what is right

The hook is problem set 4's. Accumulation is judged as in problem set 6; beside that,
parts must go through one by one.
"""

from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from manual_dp.ranks import DDP
from manual_dp.school.exercise import (
    WAITED,
    Exercise,
    about,
    close,
    each,
    failed,
    flat,
    shorten,
    so_many,
)
from manual_dp.school.ps6.accumulate import judge as judge_steps
from manual_dp.school.ps6.accumulate import judge_step_of_ranks
from manual_dp.school.tools.linear import draw_batch
from manual_dp.school.tools.plain import (
    batches,
    numbers,
    plainly,
    random_numbers,
    tensor,
)
from manual_dp.school.tools.ranks import attempt, watched

SECONDS = 20  # that all ranks have; their first optimizer imports torch's compiler


def bucket(case, pack, unpack):
    """Pack some tensors, then unpack other numbers into some of the same shapes."""
    tensors = [tensor(lists) for lists in case["tensors"]]
    packed = plainly(pack(list(tensors)))
    into = [tensor(lists) for lists in case["into"]]
    handed = list(into)
    returned = unpack(tensor(case["flat"]), handed)
    return {"packed": packed, "kept": numbers(tensors), "tensors": numbers(into),
            "list": plainly(handed), "returned": plainly(returned)}


def _draw_bucket(random):
    for shapes in ([(4, 3), (5,), (), (2, 2)], [(3,)], [(0,), (2, 1, 3), (1,)],
                   [(), (random.randint(2, 5), 2), (random.randint(1, 6),)]):
        first, into = ([random_numbers(random, *shape) for shape in shapes]
                       for _ in range(2))
        yield {"shapes": shapes, "tensors": first, "into": into,
               "flat": random_numbers(random, sum(map(prod, shapes)))}


def _judge_bucket(case, got):
    shapes, tensors = case["shapes"], case["tensors"]
    parts, wanted = [flat(lists) for lists in tensors], flat(tensors)
    packed = got["packed"]
    say = about(f"tensors of shapes {', '.join(map(str, shapes))}: "
                f"{shorten(tensors, 200)}")
    yield say("these tensors after pack", got["kept"], tensors, [
        ("pack has changed the tensors: it only reads them", True)])
    yield say("what pack returned", packed, wanted, [
        ("these agree to five digits: was something rounded to float32?",
         close(packed, wanted, 1e-5)),
        ("the last tensor's numbers come first: keep the order of the list",
         flat(parts[::-1])),
        ("these are all zeros: copy the numbers in", [0] * len(wanted)),
        ("return the flat tensor", packed is None),
        ("this is a list: join the parts to one tensor, with torch.cat",
         close(packed, parts)),
        ("the flat tensor has one dimension", close(flat(packed), wanted)),
        ("numbers are missing", len(flat(packed)) < len(wanted))])
    numels, new, old = [prod(shape) for shape in shapes], case["flat"], case["into"]
    right = _cut(new, shapes)
    say = about(f"tensors of shapes {', '.join(map(str, shapes))}, and flat = "
                f"{shorten(new, 200)}")
    reverse = _cut(new, shapes[::-1])[::-1]
    yield say("the tensors after unpack(flat, tensors)", got["tensors"], right, [
        ("the list holds them, the tensors that were in it do not: tensors[i] = ... "
         "puts another one there; write into the old one, with copy_",
         close(got["list"], right) and not close(got["list"], got["tensors"])),
        ("the result is returned; it must be written into the tensors",
         close(got["returned"], right)),
        ("nothing was written into the tensors: t = ... gives a name to another "
         "tensor; write into the old one, with copy_", old),
        ("these numbers were added to what was there; they must replace it",
         [(tensor(a) + tensor(b)).tolist() for a, b in zip(old, right)]),
        ("the numbers are cut off in another order than they were packed in", reverse),
        ("every tensor was given the numbers at the start of flat: go on behind those "
         "of the one before",
         [tensor(new[:numel]).view(shape) for numel, shape in zip(numels, shapes)])])


def _cut(values, shapes):
    pieces = tensor(values).split([prod(shape) for shape in shapes])
    return [piece.view(shape).tolist() for piece, shape in zip(pieces, shapes)]


def accumulate(case, step_in_parts):
    """Take steps on ranks with the course's DDP; note its calls and all-reduces."""
    def work():
        module, steps = nn.Linear(3, 4, bias=False, dtype=torch.float64), []
        module.load_state_dict({"weight": tensor(case["weight"])})
        events = []

        def note(module, args, y_hat):
            if y_hat.requires_grad:
                events.append(f"forward {len(y_hat)}")
                y_hat.register_hook(lambda gradient: events.append("backward"))
        module.register_forward_hook(note)
        model = DDP(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"])
        for step in case["steps"]:
            with watched() as calls:
                step_in_parts(model, optimizer, F.cross_entropy,
                              batches(step[dist.get_rank()]))
            averaged = calls.count(module.weight.numel())
            steps.append({"weight": numbers(module.weight), "averaged": averaged,
                          "others": len(calls) - averaged, "events": list(events)})
            events.clear()
        return steps
    return attempt(work, len(case["steps"][0]), SECONDS)


def _draw_accumulate(random):
    for world_size, pieces in (2, [3, 2]), (3, [2, 4]):
        rows = random.randint(2, 5)  # in every part on every rank
        yield {"lr": random.uniform(0.1, 1), "weight": random_numbers(random, 4, 3),
               "stale": [[0] * 3] * 4,
               "steps": [[[draw_batch(random, rows) for _ in range(parts)]
                          for _ in range(world_size)] for parts in pieces]}


def _judge_accumulate(case, got):
    k, pieces = len(case["steps"][0]), [len(step[0]) for step in case["steps"]]
    yield failed(f"{so_many(k, 'rank')}, two steps in {pieces} parts", got,
                 "weights from every rank", [
        ("all ranks must call the same collectives in the same order", WAITED)])
    yield from judge_steps(_judge_step, case, list(zip(*got["ranks"])))


def _judge_step(case, number, ranks, weight, got):
    """Judge the step as in problem set 6, then its order; return the right weights."""
    right = yield from judge_step_of_ranks(case, number, ranks, weight, got)
    sizes, events = [len(y) for _, y in ranks[0]], each(got, "events")
    order = [event for size in sizes for event in (f"forward {size}", "backward")]
    say = about(f"{so_many(len(ranks), 'rank')}, parts of {sizes} rows, step "
                f"{number + 1}")
    yield say("what happens on each rank, with how many rows", events,
              [order] * len(ranks), [
        ("all rows go through at once: there is no memory for that",
         any(f"forward {sum(sizes)}" in of_rank for of_rank in events)),
        ("call backward after each forward: until then its graph is kept", True)])
    return right


EXERCISES = [
    Exercise("09/bucket", 0, _draw_bucket, _judge_bucket, answers=("pack", "unpack")),
    Exercise("09/accumulate", 0, _draw_accumulate, _judge_accumulate, 20,
             answers=("step_in_parts",)),
]
