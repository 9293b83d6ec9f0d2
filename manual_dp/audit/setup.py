"""What a rank has set up, at one moment, as plain data: `settings` judges it.

    Setup      names, flags, options, hashes: small, to be pickled and compared
    snapshot   take one of models, optimizers and others; nothing is changed or sent
    unwrapped, named_parameters   the module in a DDP; the parameters of several
    comparable a tensor's numbers here that must be alike on all ranks, or None

What nobody noted is empty, and no mistake. Parameters of fully_shard are each rank's
own by design, as is the state in a ZeroRedundancyOptimizer: see Setup.left_out.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten_with_path

from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.ranks.replica import Replica

PLAIN = (bool, int, float, str, type(None))
HOW = {"params", "foreach", "fused", "capturable", "differentiable"}  # not what


@dataclass
class Setup:
    """Hold what one rank has set up; a name of several models begins with its place."""

    names: list = field(default_factory=list)       # of the parameters
    shapes: list = field(default_factory=list)      # DTensors: the whole, its placement
    dtypes: list = field(default_factory=list)
    wants: dict = field(default_factory=dict)       # name: does it want a gradient?
    modes: dict = field(default_factory=dict)       # submodule: does it train?
    weights: dict = field(default_factory=dict)     # name: hash
    buffers: dict = field(default_factory=dict)     # name: hash; not what DDP sends
    not_finite: list = field(default_factory=list)  # names of what has NaN or inf
    groups: list = field(default_factory=list)      # (class, [{option: value}]) of each
    held: list = None       # names that some optimizer holds, None without optimizers
    unheld: list = field(default_factory=list)      # that want a gradient, in vain
    state: dict = field(default_factory=dict)       # (kind, parameter): hash, number
    others: dict = field(default_factory=dict)      # name: hash, number
    left_out: list = field(default_factory=list)    # what is each rank's own by design


def unwrapped(model):
    """Return the module that DDP or torch.compile wraps; any other as it is."""
    while True:
        if "_orig_mod" in model._modules:
            model = model._orig_mod
        elif isinstance(model, (DistributedDataParallel, Replica)):
            model = model.module
        else:
            return model


def named_parameters(models):
    """Return {name: parameter} of several models, named as in a `Setup`."""
    return {_prefix(models, place) + name: p for place, model in enumerate(models)
            for name, p in unwrapped(model).named_parameters()}


def _prefix(things, place):
    return f"{place}." if len(things) > 1 else ""


def comparable(tensor):
    """Return the tensor's numbers here, None if other ranks have others, or nobody."""
    if hasattr(tensor, "placements"):
        whole = all(part.is_replicate() for part in tensor.placements)
        return tensor.to_local() if whole else None
    no_data = nn.parameter.is_lazy(tensor) or tensor.is_meta
    return None if no_data or tensor.layout != torch.strided else tensor


def snapshot(models, optimizers=(), others=()):
    """Return a `Setup`. others: a module, a scheduler, a dict or list of tensors."""
    setup = Setup(held=[] if optimizers else None)
    for place, model in enumerate(models):
        _note_model(setup, _prefix(models, place), model)
    names = {id(p): name for name, p in named_parameters(models).items()}
    for place, optimizer in enumerate(optimizers):
        _note_optimizer(setup, _prefix(optimizers, place), optimizer, names)
    _note_unheld(setup, models, len(optimizers), names)
    for place, other in enumerate(others):
        kind = _prefix(others, place) + type(other).__name__
        setup.others.update(_hashed({f"{kind}.{name}": value
                                     for name, value in _inside(other)}))
    return setup


def _note_model(setup, prefix, model):
    module, sent, sharded = unwrapped(model), set(), set()
    for part in model.modules():
        # a DDP sends rank 0's at the next forward: until then they may differ
        if getattr(part, "broadcast_buffers", hasattr(part, "sync_buffers")):
            sent |= {id(b) for b in part.buffers() if b.is_floating_point()}
        if type(part).__name__ == "FullyShardedDataParallel":
            sharded |= {id(p) for p in part.parameters()}
    params = {prefix + name: p for name, p in module.named_parameters()}
    buffers = {prefix + name: b for name, b in module.named_buffers()}
    own = [name for name, p in params.items() if id(p) in sharded
           or comparable(p) is None]
    setup.left_out += own
    setup.names += params
    setup.shapes += [None if id(p) in sharded or nn.parameter.is_lazy(p) else
                     (*p.shape, *map(str, getattr(p, "placements", ())))
                     for p in params.values()]
    setup.dtypes += [str(p.dtype) for p in params.values()]
    setup.wants.update({name: p.requires_grad for name, p in params.items()})
    setup.modes.update({prefix + name: part.training
                        for name, part in module.named_modules()})
    setup.weights.update(_hashed({k: p for k, p in params.items() if k not in own}))
    setup.buffers.update(_hashed({name: b for name, b in buffers.items()
                                  if id(b) not in sent}))
    setup.not_finite += _not_finite(params | buffers)


@torch.no_grad()
def _not_finite(tensors):
    """Return names of tensors with NaN; with inf, too, where a gradient is wanted."""
    here = {name: t.to_local() if hasattr(t, "to_local") else t
            for name, t in tensors.items() if not nn.parameter.is_lazy(t)}
    here = {name: t for name, t in here.items() if t.numel() and not t.is_meta and
            (t.is_floating_point() or t.is_complex()) and t.element_size() > 1}
    if not here:
        return []
    sums = [t.detach().sum() for t in here.values()]
    sums = torch.stack([s.to(sums[0].device, torch.complex64) for s in sums])
    odd = [name for name, fine in zip(here, sums.isfinite().tolist()) if not fine]
    return [name for name in odd if (    # a mask may have inf, a sum overflow
        here[name].isnan() | (here[name].isinf() & tensors[name].requires_grad)).any()]


def _note_optimizer(setup, prefix, optimizer, names):
    kind = getattr(optimizer, "_optim_constructor", type(optimizer))  # ZeRO's
    groups, state = [], {}
    for group in getattr(optimizer, "param_groups", ()):
        called = [names.get(id(p), f"parameter {i}")
                  for i, p in enumerate(group["params"])]
        groups.append({option: _plain(value) for option, value in group.items()
                       if option not in HOW and _plain(value) is not NotImplemented})
        groups[-1]["params"] = called
        setup.held += [name for name in called if name in setup.wants]
        state.update({(prefix + name, one): value
                      for one, p in zip(called, group["params"])
                      for name, value in _inside(optimizer.state.get(p, {}))})
    setup.groups.append((kind.__name__, groups))
    if kind is type(optimizer):
        setup.state.update(_hashed(state))
    else:
        setup.left_out.append(f"the state of {type(optimizer).__name__}")


def _note_unheld(setup, models, optimizers, names):
    """Note what wants a gradient that nobody applies, of models that are trained."""
    held, of_models = set(setup.held or ()), []
    for model in models if optimizers else ():
        mine = {names[id(p)] for p in model.parameters()}
        of_models.append((bool(mine & held), [
            names[id(p)] for p in model.parameters()
            if p.requires_grad and names[id(p)] not in held]))
    # beside one that is trained there may be a teacher or an average
    all_of_them = optimizers >= len(models) or not any(mine for mine, _ in of_models)
    setup.unheld = [name for trained, unheld in of_models
                    if trained or all_of_them for name in unheld]


def _inside(thing):
    """Yield (name, value) of the tensors in it; of a scheduler, of its numbers."""
    if isinstance(thing, nn.Module):
        yield from thing.named_parameters()
        yield from thing.named_buffers()
    elif isinstance(thing, (dict, list, tuple)) or torch.is_tensor(thing):
        for path, value in tree_flatten_with_path(thing)[0]:
            yield ".".join(str(getattr(k, "key", getattr(k, "idx", k)))
                           for k in path), value
    else:
        for name in ("last_epoch", "_last_lr"):
            if hasattr(thing, name):
                yield name, _plain(getattr(thing, name))


def _plain(value):
    """Return a number, text, or tuple of them; NotImplemented for anything else."""
    if torch.is_tensor(value) and value.numel() == 1 and not value.is_meta:
        return value.item()
    if isinstance(value, (tuple, list)):
        parts = tuple(_plain(part) for part in value)
        return NotImplemented if NotImplemented in parts else parts
    return value if isinstance(value, PLAIN) else NotImplemented


def _hashed(named):
    """Return hashes of what is comparable of tensors, numbers as they are."""
    found, tensors = {}, {}
    for name, value in named.items():
        if torch.is_tensor(value):
            if (here := comparable(value)) is not None:
                small = here.numel() == 1 and here.device.type == "cpu"
                (found if small else tensors)[name] = (
                    repr(here.item()) if small else here)
        elif _plain(value) is not NotImplemented:
            found[name] = _plain(value)
    return found | dict(zip(tensors, bit_hashes(tensors.values())))
