"""One line in a loop: are the ranks still alike?

    check_ranks   compare hashes over ranks; return the findings on every rank
    RanksDiffer   what it raises where asked to

    for f in check_ranks(model, (X, y), sampler, optimizer):
        print(f.code, f.says, f.repair)

Call it on all ranks, at any time. Nothing is changed, and no collective is called.
"""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree

from manual_dp.audit2 import state
from manual_dp.audit2.meet import NotTogether, exchange
from manual_dp.audit2.report import finding
from manual_dp.audit2.rows import TOLD, told_apart
from manual_dp.audit2.rules import differ
from manual_dp.audit2.sketch import bit_hashes, row_hashes

__all__ = ["check_ranks", "RanksDiffer", "NotTogether"]


class RanksDiffer(RuntimeError):
    """Say what differs between ranks; findings: a list, the same on every rank."""

    def __init__(self, findings):
        super().__init__("\n".join(f"{f.code}: {f.says}" for f in findings))
        self.findings = findings


def check_ranks(model, batch=None, sampler=None, optimizer=None, gradients=False,
                timeout=30, then="return"):
    """Return what differs between ranks and should not, the same list on every rank.

    model, optimizer: one, or a list. Compared are weights, buffers, requires_grad,
    train or eval mode, the optimizer's options and state; and NaN is looked for.
    batch: this rank's own rows, in tensors: ranks must not share rows, nor give equal
    ones other labels. sampler: a DistributedSampler. gradients: compare them, too.
    timeout: seconds; if by then not all ranks came, NotTogether is raised on all.
    then: "return"; "warn" on rank 0, too; or "raise" RanksDiffer on every rank.
    Raises RuntimeError without a process group, TypeError or ValueError for arguments
    that do not fit.
    """
    models, optimizers = _listed(model), _listed(optimizer)
    _check(models, batch, then)
    mine, broken = _weights(models, optimizers, gradients)
    leaves = [t for t in _pytree.tree_leaves(batch) if torch.is_tensor(t) and t.dim()]
    rows = row_hashes(max(leaves, key=torch.Tensor.numel)) if leaves else []
    told = {name: getattr(sampler, name, None) for name in TOLD} if sampler else {}
    dicts, nans, lists, samplers = zip(*exchange(
        "check_ranks", (mine, broken, rows, told), timeout))
    found = [finding("not-finite", f"NaN or inf in {names[0]}", rank)
             for rank, names in enumerate(nans) if names][:1]
    if sampler:
        found += told_apart([[one] for one in samplers])
    found += sorted(differ(dicts), key=lambda f: f.code != "replicas-differ")
    shared = set(lists[0]).intersection(*lists[1:]) if len(lists) > 1 else ()
    if shared:
        code = "rows-same" if len(shared) == len(set(rows)) else "rows-overlap"
        found.append(finding(code, f"{len(shared)} rows are on all ranks"))
    if found and then == "raise":
        raise RanksDiffer(found)
    if found and then == "warn" and dist.get_rank() == 0:
        warnings.warn(str(RanksDiffer(found)), stacklevel=2)
    return found


def _weights(models, optimizers, gradients):
    """Return ({(code, name): hash}, names of what is not finite)."""
    named, mine = state.named(models), {}
    own = {n for one in models for n in getattr(one, "parameters_to_ignore", ())}
    whole = {n: p for n, p in named.items()
             if not hasattr(p, "placements") and n not in own}
    for name, number in zip(whole, bit_hashes(whole.values())):
        mine["replicas-differ", name] = number
    if gradients:
        some = {n: p.grad for n, p in whole.items() if p.grad is not None}
        for name, number in zip(some, bit_hashes(some.values())):
            mine["replicas-differ", f"the gradient of {name}"] = number
    for i, one in enumerate(models):
        mine.update(state.of_model(one, state.prefix(models, i)))
    names = {id(p): name for name, p in named.items()}
    for i, one in enumerate(optimizers):
        mine.update(state.of_optimizer(one, state.prefix(optimizers, i), names))
    return mine, [n for n, p in whole.items()
                  if p.is_floating_point() and not bool(p.isfinite().all())]


def _listed(one):
    return list(one) if isinstance(one, (list, tuple)) else [] if one is None else [one]


def _check(models, batch, then):
    for one in models:
        if not isinstance(one, nn.Module):
            raise TypeError(f"model must be a module, got {type(one).__name__}")
    if isinstance(batch, torch.utils.data.DataLoader):
        raise TypeError("batch must be a nest of tensors, got a DataLoader")
    if then not in ("return", "warn", "raise"):
        raise ValueError(f"then must be 'return', 'warn' or 'raise', got {then!r}")
    if not dist.is_initialized():
        raise RuntimeError("check_ranks: there is no process group")
