"""What all ranks should have in common, as one flat dict: {(code, name): value}.

Codes are those of the findings: settings, buffers, replicas-differ. Values are numbers,
texts and hashes: two ranks are compared by comparing their dicts. One line does it:

    for f in check_ranks(model, (X, y), optimizer):
        print(f.code, f.says, f.repair)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree

from manual_dp.audit.meet import exchange
from manual_dp.audit.report import finding
from manual_dp.audit.sketch import bit_hashes, row_hashes

HOW = {"params", "foreach", "fused", "capturable", "differentiable", "prev_loss"}


def unwrapped(model):
    """Return the module in wrappers: in them it is called module, or _orig_mod."""
    children = dict(model.named_children())
    wraps = (
        [*children] == ["module"]
        and not [*model.parameters(recurse=False)]
        and (hasattr(model, "no_sync") or hasattr(model, "sync_buffers"))
    )
    inner = children["module"] if wraps else children.get("_orig_mod")
    return model if inner is None else unwrapped(inner)


def parts(made):
    """Return the models that are trained, and the optimizers, among what was made."""
    modules = [one for one in made if isinstance(one, nn.Module)]
    optimizers = [one for one in made if isinstance(one, torch.optim.Optimizer)]
    held = {id(p) for one in optimizers for p in params_of(one)}
    models = [
        m for m in modules if any(id(p) in held for p in m.parameters())
    ] or modules[:1]
    return models, optimizers


def params_of(optimizer):
    """Return what an optimizer holds, a list."""
    return [
        p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]
    ]


def named(models, optimizers=()):
    """Return {name: parameter}: the models', and what else the optimizers hold."""
    found = {
        at + name: p
        for at, model in numbered(models)
        for name, p in unwrapped(model).named_parameters()
    }
    known = {id(p) for p in found.values()}
    beside = [
        p
        for one in optimizers
        for p in params_of(one)
        if id(p) not in known and p.requires_grad
    ]
    return found | {f"tensor {j} beside the model": p for j, p in enumerate(beside)}


def numbered(things):
    """Return (prefix, thing) of each: its number, where there are several."""
    return [(f"{i}." if len(things) > 1 else "", one) for i, one in enumerate(things)]


def of_model(model, at=""):
    """Note which parameters are frozen, which layers train, and what buffers hold."""
    found, module, sent = {}, unwrapped(model), set()
    for part in model.modules():  # DDP sends rank 0's at the next forward
        if getattr(part, "broadcast_buffers", False) or hasattr(part, "sync_buffers"):
            sent |= {id(b) for b in part.buffers() if b.is_floating_point()}
    for name, p in module.named_parameters():
        found["settings", f"requires_grad of {at}{name}"] = p.requires_grad
    for name, part in module.named_modules():
        found["settings", f"train mode of {at}{name or 'the model'}"] = part.training
    for name, buffer in module.named_buffers():
        if id(buffer) not in sent:
            found["buffers", at + name] = _value(buffer)
    return found


def of_options(optimizer, at=""):
    """Note an optimizer's options."""
    return {("settings", f"{at}class of the optimizer"): type(optimizer).__name__} | {
        ("settings", f"{at}{option} of group {g}"): _value(x)
        for g, group in enumerate(getattr(optimizer, "param_groups", ()))
        for option, x in group.items()
        if option not in HOW
    }


def _value(x):
    """Return a number or text, or a tensor's hash; None for what is not compared."""
    if torch.is_tensor(x):
        if (
            x.is_meta
            or nn.parameter.is_lazy(x)
            or hasattr(x, "placements")
            or (x.layout != torch.strided)
        ):
            return None
        return x.item() if x.numel() == 1 else bit_hashes([x])[0]
    if isinstance(x, (tuple, list)) and all(isinstance(v, (int, float)) for v in x):
        return tuple(x)
    return x if isinstance(x, (bool, int, float, str)) else None


def differ(dicts):
    """Yield a finding for the first name of each code that has not one value."""
    told = set()
    for code, name in dict.fromkeys(key for one in dicts for key in one):
        values = [one.get((code, name)) for one in dicts]
        who = next(
            (
                rank
                for rank, v in enumerate(values)
                if v != values[0] and not (v != v and values[0] != values[0])
            ),
            None,
        )  # NaN on both is no difference
        if who is not None and code not in told:
            told.add(code)
            yield finding(
                code,
                f"{name} is {values[who]} on rank {who}, {values[0]} on rank 0"
                if code == "settings"
                else f"{name} on rank {who} is not rank 0's",
                who,
            )


def check_ranks(model, batch=None, optimizer=None, timeout=30):
    """Return what differs between ranks and should not, the same list on every rank.

    model, optimizer: one, or a list. Compared are weights, buffers, requires_grad,
    train or eval mode, the optimizer's options; and NaN is looked for.
    batch: this rank's own rows, in tensors: ranks must not share rows.
    Call it on all ranks, at any time: nothing is changed, no collective is called.
    timeout: seconds that ranks wait for one another.
    Raises RuntimeError without a process group, or if not all ranks come in time;
    TypeError for what is no model, or no batch.
    """
    models, optimizers = _listed(model), _listed(optimizer)
    if not dist.is_initialized():
        raise RuntimeError("check_ranks: there is no process group")
    if bad := [one for one in models if not isinstance(one, nn.Module)]:
        raise TypeError(f"model must be a module, got {type(bad[0]).__name__}")
    leaves = [t for t in _pytree.tree_leaves(batch) if torch.is_tensor(t) and t.dim()]
    if batch is not None and not leaves:
        raise TypeError(f"batch must be a nest of tensors, got {type(batch).__name__}")
    params = {n: p for n, p in named(models).items() if not hasattr(p, "placements")}
    mine = {
        ("replicas-differ", name): number
        for name, number in zip(params, bit_hashes(params.values()))
    }
    for at, one in numbered(models):
        mine |= of_model(one, at)
    for at, one in numbered(optimizers):
        mine |= of_options(one, at)
    nan = [name for name, p in params.items() if not p.isfinite().all()]
    rows = row_hashes(max(leaves, key=torch.Tensor.numel)) if leaves else []
    dicts, lists, broken = zip(*exchange("check_ranks", (mine, rows, nan), timeout))
    found = [
        finding("not-finite", f"NaN or inf in {names[0]}", rank)
        for rank, names in enumerate(broken)
        if names
    ][:1]
    if len(lists) > 1 and (shared := set(lists[0]).intersection(*lists[1:])):
        found.append(finding("rows-same", f"{len(shared)} rows are on all ranks"))
    return [*found, *differ(dicts)]


def _listed(one):
    return [*one] if isinstance(one, (list, tuple)) else [] if one is None else [one]
