"""Run the held-out programs and say how far they are from one rank.

    python -m tests.support.heldout.prove [NAME ...]
"""

import sys

import torch

from manual_dp.ranks import RankError, run_ranks

STEPS = 3


def run(arguments):
    """Train in this rank; return all modules' weights and buffers, in float64."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    made = arguments["make_model"]()
    made = made if isinstance(made, tuple) else (made,)
    make_batch, step = arguments["make_batch"], arguments["step"]
    for t in range(STEPS):
        batch = make_batch(t) if make_batch else ()
        step(*made, *(batch if isinstance(batch, tuple) else (batch,)))
    modules = [part for part in made if isinstance(part, torch.nn.Module)]
    others = [part for part in made if part not in modules
              and hasattr(part, "state_dict")]
    return tuple([tensors(part.state_dict()) for part in parts]
                 for parts in (modules, others))


def tensors(value):
    """Return the tensors and numbers within a state as a flat list."""
    if isinstance(value, torch.Tensor):
        return [torch.view_as_real(value) if value.is_complex() else value.double()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return [torch.tensor(float(value))] if isinstance(value, (int, float)) else []


def apart(some, others):
    """Return the greatest difference; inf where they hold other things."""
    each = [0.0]
    for one, other in zip(some, others):
        if [a.shape for a in one] != [b.shape for b in other]:
            return float("inf")
        each += [float((a - b).abs().max()) for a, b in zip(one, other) if a.numel()]
    return float("nan") if any(e != e for e in each) else max(each)


def prove(arguments, right):
    """Say how far rank 0 is from one rank, and the ranks from one another.

    right: the program without the mistake, for what one rank has wrong too.
    """
    world_size = arguments.get("world_size", 2)
    (alone, _), = run_ranks(run, 1, arguments, timeout=30)
    (good, _), = run_ranks(run, 1, right, timeout=30)
    try:
        ranks = run_ranks(run, world_size, arguments, timeout=20)
    except RankError as error:
        return f"error {str(error).strip().splitlines()[0][:90]}"
    modules, states = zip(*ranks)
    return (f"from one rank {apart(modules[0], alone):.1e}, "
            f"from one rank without it {apart(modules[0], good):.1e}, "
            f"between ranks {max(apart(modules[0], m) for m in modules):.1e}, "
            f"in their states {max(apart(states[0], s) for s in states):.1e}")


def main(names):
    """Say the differences of the programs named, or of all."""
    from tests.support.heldout.broken import BROKEN
    from tests.support.heldout.right import RIGHT
    programs = [("right", name, "", function) for name, function in RIGHT.items()]
    programs += [("broken", name, codes, function)
                 for name, (codes, function) in BROKEN.items()]
    for kind, name, codes, function in programs:
        program = getattr(function, "func", function)
        known_as = {name, program.__name__, program.__module__.split(".")[-1]}
        if not names or known_as & set(names):
            print(kind, name, codes, prove(function(), program()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
