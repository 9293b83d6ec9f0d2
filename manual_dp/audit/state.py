"""What all ranks should have in common, as one flat dict: {(code, name): value}.

Codes are those of the findings: settings, buffers, state-differs. Values are numbers,
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
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def unwrapped(model):
    """Return the module in wrappers: in them it is called module, or _orig_mod."""
    children = dict(model.named_children())
    wraps = [*children] == ["module"] and not [*model.parameters(recurse=False)] and (
        hasattr(model, "no_sync") or hasattr(model, "sync_buffers"))
    inner = children["module"] if wraps else children.get("_orig_mod")
    return model if inner is None else unwrapped(inner)


def parts(made):
    """Return models that are trained, optimizers, and others among what was made."""
    modules = [one for one in made if isinstance(one, nn.Module)]
    optimizers = [one for one in made if isinstance(one, torch.optim.Optimizer)]
    held = {id(p) for one in optimizers for p in params_of(one)}
    models = [m for m in modules if any(id(p) in held for p in m.parameters())
              ] or modules[:1]
    known = {id(one) for one in [*models, *optimizers]}
    return models, optimizers, [one for one in made if id(one) not in known]


def params_of(optimizer):
    """Return what an optimizer holds, a list."""
    return [p for group in getattr(optimizer, "param_groups", ())
            for p in group["params"]]


def named(models, optimizers=()):
    """Return {name: parameter}: the models', and what else the optimizers hold."""
    found = {prefix(models, i) + name: p for i, model in enumerate(models)
             for name, p in unwrapped(model).named_parameters()}
    known = {id(p) for p in found.values()}
    beside = [p for one in optimizers for p in params_of(one)
              if id(p) not in known and p.requires_grad]
    return found | {f"tensor {j} beside the model": p for j, p in enumerate(beside)}


def prefix(things, i):
    """Return the number of a thing, where there are several."""
    return f"{i}." if len(things) > 1 else ""


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


def of_optimizer(optimizer, at, names):
    """Note an optimizer's options, and its state of parameters, {id: name}."""
    found = {("settings", f"{at}class of the optimizer"): type(optimizer).__name__}
    shares = hasattr(optimizer, "_optim_constructor")  # ZeRO: its part on each rank
    for g, group in enumerate(getattr(optimizer, "param_groups", ())):
        found |= {("settings", f"{at}{option} of group {g}"): _value(x)
                  for option, x in group.items() if option not in HOW}
        found |= {("state-differs", f"{at}{key} of {names[id(p)]}"): _value(x)
                  for p in group["params"] if id(p) in names and not shares
                  for key, x in optimizer.state.get(p, {}).items() if key not in HOW}
    return found


def of_other(other, at, shapes):
    """Note what stands beside: an average of weights, a scheduler, a nest of tensors.

    shapes: of parameters; other tensors are not compared, and of numbers only rates.
    """
    held = other.state_dict() if hasattr(other, "state_dict") else other
    return {("state-differs", f"{at}{type(other).__name__}{name}"): _value(x)
            for path, x in _pytree.tree_flatten_with_path(held)[0]
            if (name := _pytree.keystr(path)) and not any(n in name for n in STATISTICS)
            and (torch.is_tensor(x) and (*x.shape,) in shapes
                 or name.startswith(("['last_epoch", "['_last_lr")))}


def _value(x):
    """Return a number or text, or a tensor's hash; None for what is not compared."""
    if torch.is_tensor(x):
        if x.is_meta or nn.parameter.is_lazy(x) or hasattr(x, "placements") or (
                x.layout != torch.strided):
            return None
        return x.item() if x.numel() == 1 else bit_hashes([x])[0]
    if isinstance(x, (tuple, list)) and all(isinstance(v, (int, float)) for v in x):
        return tuple(x)
    return x if isinstance(x, (bool, int, float, str)) else None


def differ(dicts, common=False):
    """Yield a finding for the first name of each code that has not one value.

    common: leave out the state that not every rank has.
    """
    told = set()
    for code, name in dict.fromkeys(key for one in dicts for key in one):
        values = [one.get((code, name)) for one in dicts]
        who = next((rank for rank, v in enumerate(values) if v != values[0] and not (
            v != v and values[0] != values[0])), None)  # NaN on both is no difference
        left_out = common and code == "state-differs" and None in values
        if who is not None and code not in told and not left_out:
            told.add(code)
            yield finding(code, f"{name} is {values[who]} on rank {who}, {values[0]} on"
                          " rank 0" if code == "settings" else
                          f"{name} on rank {who} is not rank 0's", who)


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
    params = {n: p for n, p in named(models).items() if not hasattr(p, "placements")}
    mine = {("replicas-differ", name): number
            for name, number in zip(params, bit_hashes(params.values()))}
    for i, one in enumerate(models):
        mine |= of_model(one, prefix(models, i))
    names = {id(p): name for name, p in params.items()}
    for i, one in enumerate(optimizers):
        mine |= of_optimizer(one, prefix(optimizers, i), names)
    nan = [name for name, p in params.items() if not p.isfinite().all()]
    leaves = [t for t in _pytree.tree_leaves(batch) if torch.is_tensor(t) and t.dim()]
    rows = row_hashes(max(leaves, key=torch.Tensor.numel)) if leaves else []
    dicts, lists, broken = zip(*exchange("check_ranks", (mine, rows, nan), timeout))
    found = [finding("not-finite", f"NaN or inf in {names[0]}", rank)
             for rank, names in enumerate(broken) if names][:1]
    if len(lists) > 1 and (shared := set(lists[0]).intersection(*lists[1:])):
        found.append(finding("rows-same", f"{len(shared)} rows are on all ranks"))
    return [*found, *differ(dicts)]


def _listed(one):
    return [*one] if isinstance(one, (list, tuple)) else [] if one is None else [one]
