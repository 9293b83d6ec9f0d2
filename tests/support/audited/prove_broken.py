"""Show that the broken programs are wrong, and the right ones beside them right.

    python -m tests.support.audited.prove_broken [part of a name ...]

Each is run on its ranks, and the right program beside it on one rank, in float64 and
without dropout; what they leave behind is compared. The audit is not asked.
"""

import inspect
import sys

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.ranks import RankError, run_ranks
from tests.support.audited.broken import BROKEN, right

STEPS = 3
EXACT = 1e-9
LIMIT = 15
STOPPING = {"exception", "hang", "mismatch", "unequal-batches", "unused-parameter"}


def modules_of(made):
    """Return the modules of what make_model has made, without their wrapper."""
    return [getattr(thing, "module", thing) for thing in made
            if isinstance(thing, nn.Module)]


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
    for kind in ("weights", "rates"):
        found[kind] = max(apart(seen[kind], single[kind]) for seen in ranks)
    for kind in ("rates", "modes", "frozen"):
        found[f"{kind} of ranks"] = max(apart(seen[kind], ranks[0][kind])
                                        for seen in ranks)
    found["buffers in forward"] = max(
        apart(seen["buffers in forward"], ranks[0]["buffers in forward"])
        for seen in ranks)
    same = len({seen["random"] for seen in ranks}) < len(ranks)
    found["same random numbers"] = float(same)
    return {kind: size for kind, size in found.items() if size > EXACT}


def run_all(functions, steps):
    """Run programs one after the other: a rank's first DDP takes seconds to import."""
    return [run(function, steps) for function in functions]


def outcomes(functions, world_size):
    """Return for each program what its ranks leave behind, or how it stops."""
    try:
        ranks = run_ranks(run_all, world_size, functions, STEPS,
                          timeout=LIMIT + 2 * len(functions))
        return [list(seen) for seen in zip(*ranks)]
    except RankError as error:
        if len(functions) == 1:
            return [f"stops: {str(error).strip().splitlines()[0][:70]}"]
    return [outcomes([function], world_size)[0] for function in functions]


def outcomes_by_size(functions, together=True, alone=False):
    """Return {function: outcome}; those of one world size run together."""
    found = {}
    for world_size in {size_of(function, alone) for function in functions}:
        mine = [f for f in functions if size_of(f, alone) == world_size]
        for i in range(0, len(mine), 30 if together else 1):
            few = mine[i:i + (30 if together else 1)]
            found.update(zip(few, outcomes(few, world_size)))
    return found


def size_of(function, alone=False):
    return 1 if alone else function().get("world_size", 2)


def proof_of(outcome, single, alone):
    """Return what differs from the right program, and from itself on one rank."""
    if isinstance(alone, str):
        return {f"ALONE IT {alone}": 1.0}
    if isinstance(outcome, str):
        return {outcome: 1.0}
    itself = {kind: max(apart(seen[kind], alone[0][kind]) for seen in outcome)
              for kind in ("weights", "rates")}
    return {**differences(outcome, single),
            **{f"{kind} unlike itself alone": size for kind, size in itself.items()
               if size > EXACT}}


def base_of(name):
    """Return a name for the right program: many broken ones have the same."""
    function = right(name)
    return f"{function.func.__name__} {function.keywords}"


def main(parts):
    names = [name for name in BROKEN if not parts or any(p in name for p in parts)]
    bases = {base_of(name): right(name) for name in names}
    alone = dict(zip(bases, outcomes(list(bases.values()), 1)))
    stops = [name for name in names if STOPPING & set(BROKEN[name][0])]
    found = outcomes_by_size(list(bases.values()))
    for base, function in bases.items():
        seen = proof_of(found[function], alone[base][0], alone[base])
        bases[base] = seen
        print(f"right: {base}: {seen or 'as one device'}", flush=True)
    found = outcomes_by_size([BROKEN[name][1] for name in names if name not in stops])
    found.update(outcomes_by_size([BROKEN[name][1] for name in stops], together=False))
    itself = outcomes_by_size([BROKEN[name][1] for name in names], alone=True)
    wrong = []
    for name in names:
        codes, function = BROKEN[name]
        seen = proof_of(found[function], alone[base_of(name)][0], itself[function])
        new = {kind: size for kind, size in seen.items()
               if size > 2 * bases[base_of(name)].get(kind, 0.0)}
        shown = ", ".join(f"{kind} {size:.0e}" for kind, size in new.items())
        print(f"{name} {codes}: {shown or 'NOTHING IS WRONG'}", flush=True)
        if not new:
            wrong.append(name)
    print(f"{len(names)} programs, {len(wrong)} not proved: {wrong}")


if __name__ == "__main__":
    main(sys.argv[1:])
