"""Audit replicas that live in one process, as in `train_batch`: what they measure.

    measure    take the steps; return a record for each replica, as audit_rank does
    Rows       notes which rows of X meet which replica's parameters

No process group, no optimizer and no hooks here: what a replica did is the change of
its weights over lr, and its rows are those that stand beside its parameters in some
function of torch's.
"""

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from manual_dp.audit.fingerprint import Sketch, bit_hash, farthest, row_hashes
from manual_dp.audit.gradient import plain_right
from manual_dp.audit.measure import whole_batch


class Rows(TorchFunctionMode):
    """Note rows while the block runs: `seen[rank]`, a list of lists."""

    def __init__(self, X, replicas):
        super().__init__()
        self.place = {h: row for row, h in enumerate(row_hashes(X))}
        self.row_size, self.dtype = X[0].numel(), X.dtype
        self.owner = {id(p): rank for rank, params in enumerate(replicas)
                      for p in params}
        self.seen = [[] for _ in replicas]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [a for a in [*args, *kwargs.values()] if torch.is_tensor(a)]
        owners = {self.owner[id(a)] for a in tensors if id(a) in self.owner}
        for a in tensors if owners else []:
            if a.dim() and a.dtype == self.dtype and len(a) and \
                    a.numel() == len(a) * self.row_size:
                with torch._C.DisableTorchFunction():
                    rows = [self.place.get(h) for h in row_hashes(a)]
                if None not in rows:
                    for rank in owners:
                        self.seen[rank].append(rows)
        return function(*args, **kwargs)


def measure(make_model, make_batch, step, world_size, loss, steps, forward, lr):
    """Take `steps` steps of all replicas; return what was seen of each, a list."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        made = make_model()
        if not isinstance(made, (list, tuple)):
            raise TypeError(f"make_model must return {world_size} replicas, a list, "
                            f"got {type(made).__name__}")
        lists = [_params(rank, replica) for rank, replica in enumerate(made)]
        _check(made, lists, world_size, forward, lr)
        outputs = [_call(replica, params, forward)
                   for replica, params in zip(made, lists)]
        names = ([name for name, _ in made[0].named_parameters()]
                 if isinstance(made[0], nn.Module)
                 else [f"parameter {i}" for i in range(len(lists[0]))])
        records = [{"names": names, "steps": [], "drift": None, "finds_unused": False,
                    "sizes": [p.numel() for p in params], "buffer_names": [],
                    "frozen": [not p.requires_grad for p in params],
                    "shared": _shared(lists)} for params in lists]
        sketch = Sketch(lists[0])
        for t in range(steps):
            X, y = whole_batch(make_batch, t)
            old = [[p.detach().clone() for p in params] for params in lists]
            with Rows(X, lists) as rows:
                step(made, X, y)
            notes = [_note(rows.seen[rank], X, y, old[rank], params, outputs[rank],
                           loss, sketch) for rank, params in enumerate(lists)]
            if t == 0 and not plain_right(notes):
                for rank, note in enumerate(notes):
                    note["turned"] = [sketch(_gradient(
                        rows.seen[rank][:1], X, y.roll(by, 0), old[rank], outputs[rank],
                        loss)) for by in (1, -1)]
            _drift(t, records, old, lists)
            for record, note in zip(records, notes):
                record["steps"].append(note)
        return records
    finally:
        torch.set_default_dtype(before)


def _note(seen, X, y, old, params, output, loss, sketch):
    seen = seen[:1]  # the first function that meets the rows
    grads = _gradient(seen, X, y, old, output, loss)
    before = sketch(old)
    return {"batch": 0, "size": len(X), "rows": seen, "all_rows": seen, "forwards": 1,
            "synced": 0, "summed": 0, "updates": 0, "kind": None, "plain": False,
            "rates": {}, "missing": [], "foreign": 0, "buffers": [], "changed": False,
            "moved": any(not torch.equal(p, q) for p, q in zip(params, old)),
            "used": None, "own": sketch(grads), "step": before - sketch(params),
            "weight": len(seen[0]) if seen else 0,
            "blur": float(before.norm()), "whole": None,
            "unreached": [i for i, g in enumerate(grads) if g is None]}


def _gradient(seen, X, y, old, output, loss):
    leaves = [p.clone().requires_grad_() for p in old]
    if not seen or not seen[0]:
        return [torch.zeros_like(p) for p in leaves]
    total = len(seen[0]) * loss(output(X[seen[0]], leaves), y[seen[0]])
    return torch.autograd.grad(total, leaves, allow_unused=True)


def _drift(t, records, old, lists):
    """Note in all records where replicas part, if they have not yet."""
    for when, state in (("before", old), ("after", lists)):
        if records[0]["drift"] is None and (t == 0 or when == "after"):
            for i, tensors in enumerate(zip(*state)):
                if len({int(bit_hash(p)) for p in tensors}) > 1:
                    distances = [farthest(p, tensors[0]) for p in tensors]
                    for record in records:
                        record["drift"] = (t, when, i, distances)
                    break


def _params(rank, replica):
    if isinstance(replica, nn.Module):
        return list(replica.double().parameters())
    if isinstance(replica, (list, tuple)) and all(map(torch.is_tensor, replica)):
        return list(replica)
    raise TypeError(f"replica {rank} must be a module or a list of tensors, got "
                    f"{type(replica).__name__}")


def _call(replica, params, forward):
    """Return a function of X and other values for the parameters."""
    if forward is not None:
        return forward
    names = [name for name, _ in replica.named_parameters()]
    return lambda X, values: functional_call(replica, dict(zip(names, values)), (X,))


def _shared(lists):
    """Return (rank, parameter) that stands on memory of another, or None."""
    homes = {}
    for rank, params in enumerate(lists):
        for i, p in enumerate(params):
            if p.numel() and homes.setdefault(p.data_ptr(), rank) != rank:
                return rank, i
    return None


def _check(made, lists, world_size, forward, lr):
    if len(lists) != world_size:
        raise ValueError(f"make_model returned {len(lists)} replicas for world_size "
                         f"{world_size}")
    if forward is None and not all(isinstance(one, nn.Module) for one in made):
        raise ValueError("forward(X, params) is needed where replicas are tensors")
    if not (isinstance(lr, (int, float)) and 0 < lr < math.inf):
        raise ValueError(f"lr must be the step's learning rate > 0, got {lr!r}")
