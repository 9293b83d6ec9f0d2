"""What all ranks should have in common, as one flat dict: {(code, name): value}.

Codes are those of the findings: settings, buffers, replicas-differ. Values are numbers,
texts and hashes: two ranks are compared by comparing their dicts. One line does it:

    for f in check_ranks(model, (X, y), optimizer):
        print(f.code, f.says, f.repair)
"""

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.audit.board import Board
from manual_dp.audit.private import leaves, private
from manual_dp.audit.report import finding
from manual_dp.audit.sketch import bit_hashes, row_hashes
from manual_dp.ranks.launch.verdict import ranks_in_words

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


def is_shard(p):
    """Return whether a rank holds a part of this tensor alone, as in FSDP."""
    return hasattr(p, "placements")


def params_of(optimizer):
    """Return what an optimizer holds, a list."""
    return [
        p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]
    ]


def named(models, optimizers=()):
    """Return {name: parameter}: the models', and what else the optimizers hold."""
    found, known = {}, set()
    for at, model in numbered(models):
        for name, p in unwrapped(model).named_parameters():
            if id(p) not in known:
                found[at + name] = p
                known.add(id(p))
    beside = {
        id(p): p
        for one in optimizers
        for p in params_of(one)
        if id(p) not in known and p.requires_grad
    }
    return found | {
        f"tensor {j} of shape {[*p.shape]}, beside the model": p
        for j, p in enumerate(beside.values())
    }


def numbered(things):
    """Return (prefix, thing) of each: its kind and number, where there are several."""
    if len(things) < 2:
        return [("", one) for one in things]
    kinds = [unwrapped(one) if isinstance(one, nn.Module) else one for one in things]
    return [
        (f"{type(kind).__name__} {i}: ", one)
        for i, (kind, one) in enumerate(zip(kinds, things), 1)
    ]


def of_model(model, at=""):
    """Note which parameters are frozen, which layers train, and what buffers hold.

    A buffer that DDP sends at the next forward is noted as "sent", one that it was told
    not to send as "kept"; batch norm's are left out where they are sent, since rank 0's
    are as good as the others'.
    """
    found, module = {}, unwrapped(model)
    sent, kept, norms = set(), set(), set()
    for part in model.modules():
        if getattr(part, "broadcast_buffers", False) or hasattr(part, "sync_buffers"):
            sent |= {id(b) for b in part.buffers()}
        elif hasattr(part, "broadcast_buffers"):
            kept |= {id(b) for b in part.buffers()}
    kind = private("batch norm")
    for part in module.modules():
        if kind and isinstance(part, kind):
            norms |= {id(b) for b in part.buffers(recurse=False)} & sent
    for name, p in module.named_parameters():
        found["settings", f"requires_grad of {at}{name}"] = p.requires_grad
    for name, part in module.named_modules():
        found["settings", f"train mode of {at}{name or 'the model'}"] = part.training
    for name, buffer in module.named_buffers():
        if id(buffer) not in norms:
            code = "sent" if id(buffer) in sent else "buffers"
            code = "kept" if id(buffer) in kept else code
            found[code, at + name] = _value(buffer)
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
            or is_shard(x)
            or (x.layout != torch.strided)
        ):
            return None
        return x.item() if x.numel() == 1 else bit_hashes([x])[0]
    if isinstance(x, (tuple, list)) and all(isinstance(v, (int, float)) for v in x):
        return tuple(x)
    return x if isinstance(x, (bool, int, float, str)) else None


def differ(dicts, leave=("sent",)):
    """Yield a finding for the first name of each code that has not one value.

    What is "sent" is no finding: rank 0's comes to all. leave: codes that are none.
    """
    told = {*leave}
    for code, name in dict.fromkeys(key for one in dicts for key in one):
        values = [one.get((code, name)) for one in dicts]
        others = [rank for rank, v in enumerate(values) if not _same(v, values[0])]
        if others and code not in told:
            told.add(code)
            who = others[0]
            says = f"{name} on rank {who} is not rank 0's"
            if code == "settings":
                its, first = shown(values[who], values[0])
                says = f"{name} is {its} on rank {who}, {first} on rank 0"
            yield finding("buffers" if code == "kept" else code, says, who)


def shown(x, y):
    """Return two values as text, in as few digits as tell them apart."""
    if isinstance(x, float) and isinstance(y, float) and f"{x:g}" != f"{y:g}":
        return f"{x:g}", f"{y:g}"
    return str(x), str(y)


def _same(x, y):
    return x == y or (x != x and y != y)  # NaN on both is no difference


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
    models, optimizers = _as_list(model), _as_list(optimizer)
    if not dist.is_initialized():
        raise RuntimeError("check_ranks: there is no process group")
    if bad := [one for one in models if not isinstance(one, nn.Module)]:
        raise TypeError(f"model must be a module, got {type(bad[0]).__name__}")
    tensors = [t for t in leaves(batch) if torch.is_tensor(t) and t.dim()]
    if batch is not None and not tensors:
        raise TypeError(f"batch must be a nest of tensors, got {type(batch).__name__}")
    params = {n: p for n, p in named(models).items() if not is_shard(p)}
    mine = {
        ("replicas-differ", name): number
        for name, number in zip(params, bit_hashes(params.values()))
    }
    for at, one in numbered(models):
        mine |= of_model(one, at)
    for at, one in numbered(optimizers):
        mine |= of_options(one, at)
    nan = [name for name, p in params.items() if not p.isfinite().all()]
    rows = row_hashes(max(tensors, key=torch.Tensor.numel)) if tensors else []
    board = Board("check_ranks")
    board.put((mine, rows, nan))
    said = board.all(timeout)
    if missing := [rank for rank, one in enumerate(said) if one is None]:
        raise RuntimeError(
            f"check_ranks: {ranks_in_words(missing)} did not come to call {board.turn} "
            f"within {timeout:g} s"
        )
    board.clear_previous()
    dicts, lists, broken = zip(*said)
    found = [
        finding("not-finite", f"NaN or inf in {names[0]}", rank)
        for rank, names in enumerate(broken)
        if names
    ][:1]
    if len(lists) > 1 and (shared := set(lists[0]).intersection(*lists[1:])):
        found.append(finding("rows-same", f"{len(shared)} rows are on all ranks"))
    return [*found, *differ(dicts)]


def _as_list(one):
    if one is None:
        return []
    return list(one) if isinstance(one, (list, tuple)) else [one]
