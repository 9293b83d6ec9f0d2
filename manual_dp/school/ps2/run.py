"""How the answers of problem set 2 are run: one program for each rank, step by step."""

import torch

from manual_dp.school.tools.plain import listed, tensor
from manual_dp.school.tools.rounds import RoundsError, run_rounds

# what the notebook's first cell defines
START = dict(torch=torch, run_rounds=run_rounds)
# and what else it imports, for trying things out
TRIED = ("check",)
# graded, every rank of these has a process of its own: grader/apart.py
APART = ("reduce_scatter", "allgather", "ring_allreduce", "spread_allreduce",
         "tree_allreduce")


def on_every_rank(case, answer):
    """Run a program on every rank; return what its tensors hold, and what was sent."""
    handed = []

    def program(rank, world_size, own):
        handed.append(own)
        return answer(rank, world_size, own)
    own = [[tensor(p) for p in rank] if case.get("params") else tensor(rank)
           for rank in case["tensors"]]
    try:
        result = run_rounds(program, own)
    except RoundsError as error:
        return {"stopped": str(error), "kind": error.kind}
    return {**result, "list": _tensors(handed),
            "returned": _tensors(result["returned"])}


reduce_scatter = allgather = ring_allreduce = on_every_rank
spread_allreduce = tree_allreduce = on_every_rank


def _tensors(values):
    """Return `values`, None for what holds none: a learner's code made them."""
    return [value if all(isinstance(part, torch.Tensor) for part in listed(value))
            else None for value in values]
