"""Prove that the right programs are right, without the audit.

    python -m tests.support.audited.prove [NAME...]

Each runs its steps, 3 as a rule, on its world size and on 1, in float64, without
dropout. Replicas must end equal, finite and moved; and equal to one device within 1e-10
or the program's TOLERANCE, unless REPLICAS_ONLY says why one device computes something
else. Those that cast to float32 themselves, FLOAT32, run in float32, within 1e-5.
"""

import dataclasses
import inspect
import sys

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from manual_dp.ranks import RankError, run_ranks
from tests.support.audited.right import FLOAT32, REPLICAS_ONLY, RIGHT, TOLERANCE


def as_double(batch):
    if dataclasses.is_dataclass(batch):
        return dataclasses.replace(batch, **{
            field.name: as_double(getattr(batch, field.name))
            for field in dataclasses.fields(batch)})
    return pytree.tree_map_only(
        torch.Tensor, lambda v: v.double() if v.is_floating_point() else v, batch)


def without_dropout(model):
    F.dropout = lambda x, *args, **kwargs: x  # what nn.Dropout calls, too
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):  # RNNs, attention
            module.dropout = 0.0


def call(step, made, batch):
    if batch is None:
        return step(*made)
    if isinstance(batch, (tuple, list)):
        try:
            inspect.signature(step).bind(*made, *batch)
            return step(*made, *batch)
        except TypeError:
            pass
    return step(*made, batch)


def state(made):
    """Return everything that has to be alike: weights, buffers, EMAs, by name."""
    named = {}
    for i, thing in enumerate(made):
        if isinstance(thing, nn.Module):
            thing = thing.state_dict()
        if isinstance(thing, dict):
            for name, v in thing.items():
                if torch.is_tensor(v):
                    v = v.full_tensor() if isinstance(v, DTensor) else v
                    key = f"{i} {name}".replace("module.", "")
                    named[key] = v.detach().to(torch.float64, copy=True)
    return named


def train(name):
    case = RIGHT[name]()
    double = name not in FLOAT32
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    made = case["make_model"]()
    made = made if isinstance(made, tuple) else (made,)
    for model in made:
        if isinstance(model, nn.Module):
            if double:
                model.double()
            without_dropout(model)
    before = state(made)
    make_batch = case.get("make_batch")
    for t in range(case.get("steps", 3)):
        batch = make_batch(t) if make_batch else None
        call(case["step"], made, as_double(batch) if double else batch)
    return before, state(made)


def farthest(one, other, skip=()):
    if one.keys() != other.keys():
        return f"different names: {sorted(one.keys() ^ other.keys())[:4]}"
    return max((one[k] - other[k]).abs().max().item() for k in one
               if not k.endswith(tuple(skip)) and one[k].numel())


def train_all(names):
    return [train(name) for name in names]


def run(names, world_size):
    """Return name -> each rank's (before, after), or what went wrong.

    All in one group of processes; one by one if that fails, to know which it was.
    """
    try:
        results = run_ranks(train_all, world_size, names, timeout=60 + 10 * len(names))
        return dict(zip(names, zip(*results)))
    except RankError as error:
        if len(names) == 1:
            return {names[0]: str(error)[-1500:]}
        return {k: v for name in names for k, v in run([name], world_size).items()}


def judge(name, results, single):
    """Return what is wrong with the program, or None, and how far one device is."""
    for failed in (results, single):
        if isinstance(failed, str):
            return failed, None
    before, after = results[0]
    # under DDP each rank has running means of its own between two forwards
    skip = ("running_mean", "running_var") if name in REPLICAS_ONLY else ()
    for rank, (start, end) in enumerate(results):
        if farthest(before, start) != 0:
            return f"rank {rank} starts elsewhere", None
        if farthest(after, end, skip) != 0:
            return f"rank {rank} ends {farthest(after, end, skip)} away", None
    if not all(v.isfinite().all() for v in after.values()):
        return "not finite", None
    if farthest(before, after) < 1e-6:
        return "did not move", None
    apart = farthest(after, single[0][1], skip)
    limit = TOLERANCE.get(name, 1e-5 if name in FLOAT32 else 1e-10)
    if name not in REPLICAS_ONLY and apart > limit:
        return f"{apart} away from one device", apart
    return None, apart


def main(names):
    single, several = run(names, 1), {}
    for size in (2, 3, 4):
        chosen = [name for name in names if RIGHT[name]().get("world_size", 2) == size]
        several.update(run(chosen, size) if chosen else {})
    wrong = 0
    for name in names:
        problem, apart = judge(name, several[name], single[name])
        wrong += problem is not None
        why = f"(replicas: {REPLICAS_ONLY[name]})" if name in REPLICAS_ONLY else ""
        print(f"{name:36} {problem or 'right'} {apart} {why}")
    print(f"{len(names)} programs, {wrong} not proved")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(RIGHT)) > 0)
