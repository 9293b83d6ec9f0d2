"""How the answers of problem set 2 are run: one program for each rank, step by step."""

import torch

from manual_dp.school.tools.plain import numbers, tensor
from manual_dp.school.tools.rounds import RoundsError, run_rounds

# what the notebook's first cell defines
START = dict(torch=torch, run_rounds=run_rounds)


def reduce_scatter(case, reduce_scatter):
    """Run reduce_scatter on every rank."""
    return _run(reduce_scatter, case)


def allgather(case, allgather):
    """Run allgather on every rank."""
    return _run(allgather, case)


def ring_allreduce(case, ring_allreduce):
    """Run ring_allreduce on every rank."""
    return _run(ring_allreduce, case)


def spread_allreduce(case, spread_allreduce):
    """Run spread_allreduce on every rank, each with a list of parameters."""
    return _run(spread_allreduce, case)


def tree_allreduce(case, tree_allreduce):
    """Run tree_allreduce on every rank."""
    return _run(tree_allreduce, case)


def _run(answer, case):
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
    return {"tensors": numbers(result["tensors"]), "lists": _plain(handed),
            "returned": _plain(result["returned"]),
            "steps": result["steps"], "sent": result["sent"]}


def _plain(values):
    # what a learner's code made may be anything; only tensors are of interest
    return [numbers(value) if _is_tensors(value) else None for value in values]


def _is_tensors(value):
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(part, torch.Tensor) for part in parts)
