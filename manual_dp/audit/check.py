"""One line in a loop: are the ranks still alike?

    for f in check_ranks(model, (X, y), optimizer):
        print(f.code, f.says, f.repair)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree

from manual_dp.audit import state
from manual_dp.audit.meet import exchange
from manual_dp.audit.report import finding
from manual_dp.audit.rules import differ
from manual_dp.audit.sketch import bit_hashes, row_hashes


def check_ranks(model, batch=None, optimizer=None, timeout=30):
    """Return what differs between ranks and should not, the same list on every rank.

    model, optimizer: one, or a list. Compared are weights, buffers, requires_grad,
    train or eval mode, the optimizer's options and state; and NaN is looked for.
    batch: this rank's own rows, in tensors: ranks must not share rows.
    Call it on all ranks, at any time: nothing is changed, no collective is called.
    timeout: seconds; if by then not all ranks came, NotTogether is raised on all.
    Raises RuntimeError without a process group, TypeError for no model or batch.
    """
    models, optimizers = _listed(model), _listed(optimizer)
    if not dist.is_initialized():
        raise RuntimeError("check_ranks: there is no process group")
    if bad := [one for one in models if not isinstance(one, nn.Module)]:
        raise TypeError(f"model must be a module, got {type(bad[0]).__name__}")
    if isinstance(batch, torch.utils.data.DataLoader):
        raise TypeError("batch must be a nest of tensors, got a DataLoader")
    own = {n for one in models for n in getattr(one, "parameters_to_ignore", ())}
    named = {n: p for n, p in state.named(models).items()
             if not hasattr(p, "placements") and n not in own}
    mine = {("replicas-differ", name): number
            for name, number in zip(named, bit_hashes(named.values()))}
    for i, one in enumerate(models):
        mine |= state.of_model(one, state.prefix(models, i))
    names = {id(p): name for name, p in named.items()}
    for i, one in enumerate(optimizers):
        mine |= state.of_optimizer(one, state.prefix(optimizers, i), names)
    mine |= {("not-finite", name): bool(p.isfinite().all()) for name, p in named.items()
             if p.is_floating_point()}
    leaves = [t for t in _pytree.tree_leaves(batch) if torch.is_tensor(t) and t.dim()]
    rows = row_hashes(max(leaves, key=torch.Tensor.numel)) if leaves else []
    dicts, lists = zip(*exchange("check_ranks", (mine, rows), timeout))
    broken = [finding("not-finite", f"NaN or inf in {name}", rank)
              for rank, one in enumerate(dicts) for (code, name), fine in one.items()
              if code == "not-finite" and not fine]
    shared = set(lists[0]).intersection(*lists[1:]) if len(lists) > 1 else ()
    same = [finding("rows-same", f"{len(shared)} rows are on all ranks")] * bool(shared)
    return broken[:1] + same + [f for f in differ(dicts) if f.code != "not-finite"]


def _listed(one):
    return [*one] if isinstance(one, (list, tuple)) else [] if one is None else [one]
