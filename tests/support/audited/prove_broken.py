"""Show that the broken programs are wrong, and the right ones beside them right.

    python -m tests.support.audited.prove_broken [part of a name ...]

Each is run on its ranks, and the right program beside it on one rank, in float64 and
without dropout; what they leave behind is compared. The audit is not asked.
"""

import inspect
import itertools
import sys

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.ranks import RankError, run_ranks
from tests.support.audited.broken import BROKEN, right

STEPS = 3
EXACT = 1e-9


def modules_of(made):
    found = [thing for thing in made if isinstance(thing, nn.Module)]
    return [getattr(thing, "module", thing)
            if isinstance(thing, nn.parallel.DistributedDataParallel) else thing
            for thing in found]


def run(function, steps):
    """Run a program on this rank; return what it leaves behind, by kind."""
    torch.set_default_dtype(torch.float64)
    case = function()
    made = case["make_model"]()
    made = made if isinstance(made, tuple) else (made,)
    modules, seen = modules_of(made), {"buffers in forward": []}
    for module in modules:
        module.double()
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0

    def look(module, _):
        if module.training:
            seen["buffers in forward"] += [b.double().sum().item()
                                           for b in module.buffers()]

    for module in modules:
        module.register_forward_pre_hook(look)
    weights, rates = [], []
    for t in range(steps):
        step(case, made, t)
        weights += [v.detach().double().clone() for m in modules
                    for v in m.parameters()]
        rates += [group["lr"] for thing in made
                  if isinstance(thing, torch.optim.Optimizer)
                  for group in thing.param_groups]
    seen.update(weights=weights, rates=rates,
                modes=[part.training for m in modules for part in m.modules()],
                frozen=[p.requires_grad for m in modules for p in m.parameters()],
                random=torch.rand(1).item())
    seen["weights"] = [v.tolist() for v in weights]
    dist.barrier()
    return seen


def step(case, made, t):
    """Call a program's step as the audit's contract says."""
    if case["make_batch"] is None:
        return case["step"](*made)
    batch = case["make_batch"](t)
    takes = len(inspect.signature(case["step"]).parameters)
    if isinstance(batch, (tuple, list)) and takes == len(made) + len(batch):
        return case["step"](*made, *batch)
    return case["step"](*made, batch)


def numbers(values):
    flat = []
    for value in values:
        flat += torch.tensor(value, dtype=torch.float64).flatten().tolist()
    return torch.tensor(flat, dtype=torch.float64)


def apart(a, b):
    a, b = numbers(a), numbers(b)
    if a.shape != b.shape or not torch.isfinite(a).all():
        return float("inf")
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item() if len(a) else 0.0


def differences(ranks, single):
    """Return how far the ranks are from one another and from a single device."""
    found = {}
    for kind in ("weights", "rates", "modes", "frozen"):
        found[kind] = max(apart(seen[kind], single[kind]) for seen in ranks)
    found["buffers in forward"] = max([0.0] + [
        apart(a["buffers in forward"], b["buffers in forward"])
        for a, b in itertools.combinations(ranks, 2)])
    same = len({seen["random"] for seen in ranks}) < len(ranks)
    found["same random numbers"] = float(same)
    return {kind: size for kind, size in found.items() if size > EXACT}


def tell(function, world_size, single):
    try:
        ranks = run_ranks(run, world_size, function, STEPS, timeout=15)
    except RankError as error:
        return {f"stops: {str(error).strip().splitlines()[0][:70]}": 1.0}
    return differences(ranks, single)


def main(parts):
    wrong, singles, bases = [], {}, {}
    for name, (codes, function) in BROKEN.items():
        if parts and not any(part in name for part in parts):
            continue
        base = right(name)
        key = (base.func.__module__, base.func.__name__, str(base.keywords))
        world_size = function().get("world_size", 2)
        if key not in singles:
            singles[key] = run_ranks(run, 1, base, STEPS, timeout=15)[0]
            bases[key] = tell(base, world_size, singles[key])
            print(f"  right: {key[1:]}: {bases[key] or 'as one device'}", flush=True)
        proof = tell(function, world_size, singles[key])
        shown = ", ".join(f"{kind} {size:.0e}" for kind, size in proof.items()
                          if kind not in bases[key])
        print(f"{name} {codes}: {shown or 'NOTHING IS WRONG'}", flush=True)
        if not set(proof) - set(bases[key]):  # the right program shows as much
            wrong.append(name)
    print(f"{len(wrong)} not proved: {wrong}")


if __name__ == "__main__":
    main(sys.argv[1:])
