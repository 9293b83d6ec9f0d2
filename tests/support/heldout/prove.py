"""Run the held-out programs and say how far they are from one rank.

    python -m tests.support.heldout.prove [NAME ...]
"""

import sys

import torch

from manual_dp.ranks import RankError, run_ranks

STEPS = 4


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
    parts = [part for part in made if hasattr(part, "state_dict")]
    return [tensors(part.state_dict()) for part in parts]


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
    """Return the greatest difference: of the first module, and of all that was made."""
    each = []
    for one, other in zip(some, others):
        if [a.shape for a in one] != [b.shape for b in other]:
            each.append(float("inf"))
            continue
        differences = [float((a - b).abs().max()) for a, b in zip(one, other)
                       if a.numel()]
        each.append(max(differences, default=0.0))
    return max(each)


def prove(arguments):
    """Return how far rank 0 is from one rank, and the ranks from one another."""
    world_size = arguments.get("world_size", 2)
    alone, = run_ranks(run, 1, arguments, timeout=30)
    try:
        ranks = run_ranks(run, world_size, arguments, timeout=20)
    except RankError as error:
        return f"error {str(error).strip().splitlines()[0][:90]}"
    return apart(ranks[0], alone), max(apart(ranks[0], r) for r in ranks)


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
            print(kind, name, codes, prove(function()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
