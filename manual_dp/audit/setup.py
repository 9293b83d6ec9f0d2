"""What a rank has set up, at one moment, as plain data: `settings` judges it.

    Setup      names, flags, options, hashes: small, to be pickled and compared
    copied       hashes of the weights of copies of a model, as averages are
    snapshot     take one of models, optimizers and others; nothing is changed or sent
    fresh_seed   the seed of random numbers of which none was drawn yet
    unwrapped, named_parameters   the module in a DDP; the parameters of several
    wraps        how DDP is used
    prefix       what tells these apart

What nobody noted is empty, and no mistake. Parameters of fully_shard are each rank's
own by design, as is the state in a ZeroRedundancyOptimizer: see Setup.left_out.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit.exact import random_states
from manual_dp.audit.fingerprint import Sketch, bit_hashes
from manual_dp.audit.plain import comparable, hashed, inside, not_finite, plain
from manual_dp.ranks.replica import Replica

NORM = nn.modules.batchnorm._BatchNorm
HOW = {"params", "foreach", "fused", "capturable", "differentiable"}  # not what


@dataclass
class Setup:
    """Hold what one rank has set up; a name of several models begins with its place."""

    names: list = field(default_factory=list)       # of the parameters
    shapes: list = field(default_factory=list)      # DTensors: the whole, its placement
    dtypes: list = field(default_factory=list)
    wants: dict = field(default_factory=dict)       # name: does it want a gradient?
    modes: dict = field(default_factory=dict)       # submodule: does it train?
    buffers: dict = field(default_factory=dict)     # name: hash; not what DDP sends
    not_finite: list = field(default_factory=list)  # names of what has NaN or inf
    groups: list = field(default_factory=list)      # (class, [{option: value}]) of each
    held: list = None       # names that some optimizer holds, None without optimizers
    unheld: list = field(default_factory=list)      # that want a gradient, in vain
    state: dict = field(default_factory=dict)       # (kind, parameter): hash, number
    others: dict = field(default_factory=dict)      # name: hash, number
    sketches: dict = field(default_factory=dict)    # of these, of what is like weights
    copies: dict = field(default_factory=dict)      # name: hash, of the model's copies
    drops: bool = False     # is some dropout at work?
    norms: int = 0          # layers of batch norm that take the minibatch's statistics
    own_norms: int = 0      # of these, torch's own, and not somebody's
    draws_from: int = None  # a hash of the state of torch's random numbers
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


def wraps(model):
    """Return how DDP is used: "ddp", "join", or torch's hook by name."""
    if getattr(getattr(model, "_join_config", None), "enable", False):
        return "join"
    names = [hook.__name__.removesuffix("_hook")  # torch's: what may be inexact
             for hook, _ in getattr(model, "_comm_hooks", ())
             if getattr(hook, "__module__", "").startswith("torch.")]
    return next((name for name in names if name not in ("allreduce", "noop")), "ddp")


def named_parameters(models):
    """Return {name: parameter} of several models, named as in a `Setup`."""
    return {prefix(models, place) + name: p for place, model in enumerate(models)
            for name, p in unwrapped(model).named_parameters()}


def fresh_seed():
    """Return the seed of torch's random numbers, None if some were drawn since."""
    state, seed = torch.get_rng_state(), torch.initial_seed()
    fresh = torch.Generator().manual_seed(seed).get_state()
    return seed if torch.equal(state, fresh) else None


def ids_held(optimizers):
    """Return the ids of the parameters that some of the optimizers hold."""
    return {id(p) for one in optimizers for group in getattr(one, "param_groups", ())
            for p in group["params"]}


def rates(optimizer, index):
    """Return {i: lr} of the parameters that it holds; index: {id: i} of the model's."""
    return {index[id(p)]: float(group["lr"]) for group in optimizer.param_groups
            for p in group["params"] if id(p) in index}


def prefix(things, place):
    """Return what a name begins with: the place, where there are several."""
    return f"{place}." if len(things) > 1 else ""


def snapshot(models, optimizers=(), others=()):
    """Return a `Setup`. others: a module, a scheduler, a dict or list of tensors."""
    setup = Setup(held=[] if optimizers else None)
    of_models = [_note_model(setup, prefix(models, place), model)
                 for place, model in enumerate(models)]
    names = {id(p): name for params in of_models for name, p in params.items()}
    for place, optimizer in enumerate(optimizers):
        _note_optimizer(setup, prefix(optimizers, place), optimizer, names)
    held = ids_held(optimizers)
    devices = {p.device for params in of_models for p in params.values() if p.is_cuda}
    setup.draws_from = sum(bit_hashes(random_states(sorted(devices, key=str))))
    setup.unheld = _unheld(of_models, len(optimizers), held)
    for place, other in enumerate(others):
        kind = prefix(others, place) + type(other).__name__
        mine = {f"{kind}.{name}": value for name, value in inside(other)
                if not isinstance(other, (dict, list)) or like_weights(setup, value)}
        setup.others.update(hashed(mine))
        like = {name: value for name, value in mine.items()
                if like_weights(setup, value) and value.is_floating_point()}
        setup.sketches.update(zip(like, Sketch([*like.values()])(like.values())))
        if isinstance(other, nn.Module) and optimizers:  # one that is trained by nobody
            setup.unheld += [f"{kind}.{name}" for name, p in other.named_parameters()
                             if p.requires_grad and p.grad is not None
                             and id(p) not in held]
    return setup


def copied(modules, shapes):
    """Return hashes of the weights of those modules that have these shapes."""
    like = [one for one in modules if one is not None
            and [(*p.shape,) for p in one.parameters()] == shapes]
    return hashed({f"{type(one).__name__} {place}.{name}": p
                   for place, one in enumerate(like)
                   for name, p in one.named_parameters() if not p.requires_grad})


def like_weights(setup, value):
    """Return whether this may be an average of some weights: it is shaped like them."""
    return (torch.is_tensor(value) and value.numel() > 1
            and (*value.shape,) in setup.shapes)


def _note_model(setup, prefix, model):
    """Note what is of one model; return its parameters, {name: parameter}."""
    module, sent, sharded = unwrapped(model), set(), set()
    setup.drops |= any(part.training and part.p > 0 for part in module.modules()
                       if isinstance(part, nn.modules.dropout._DropoutNd))
    norms = [part for part in module.modules() if isinstance(part, NORM)
             and not isinstance(part, nn.SyncBatchNorm)
             and (part.training or part.running_mean is None)]
    setup.norms += len(norms)
    setup.own_norms += sum(type(part).forward is NORM.forward for part in norms)
    for part in model.modules():
        # a DDP sends rank 0's at the next forward: until then they may differ
        if getattr(part, "broadcast_buffers", hasattr(part, "sync_buffers")):
            sent |= {id(b) for b in part.buffers() if b.is_floating_point()}
        if type(part).__name__ == "FullyShardedDataParallel":
            sharded |= {id(p) for p in part.parameters()}
    params = {prefix + name: p for name, p in module.named_parameters()}
    told = getattr(model, "parameters_to_ignore", ())  # by DDP: buffers, too
    buffers = {prefix + name: b for name, b in module.named_buffers()
               if name not in told}
    setup.left_out += [name for name, p in params.items() if id(p) in sharded
                       or comparable(p) is None]
    setup.names += params
    setup.shapes += [None if id(p) in sharded or nn.parameter.is_lazy(p) else
                     (*p.shape, *map(str, getattr(p, "placements", ())))
                     for p in params.values()]
    setup.dtypes += [str(p.dtype) for p in params.values()]
    setup.wants.update({name: p.requires_grad for name, p in params.items()})
    setup.modes.update({prefix + name: part.training
                        for name, part in module.named_modules()})
    setup.buffers.update(hashed({name: b for name, b in buffers.items()
                                  if id(b) not in sent}))
    setup.not_finite += not_finite(params | buffers)
    return params


def _note_optimizer(setup, prefix, optimizer, names):
    kind = getattr(optimizer, "_optim_constructor", type(optimizer))  # ZeRO's
    groups, state = [], {}
    for group in getattr(optimizer, "param_groups", ()):
        called = [names.get(id(p), f"parameter {i}")
                  for i, p in enumerate(group["params"])]
        groups.append({option: plain(value) for option, value in group.items()
                       if option not in HOW and plain(value) is not NotImplemented})
        setup.held += [name for name in called if name in setup.wants]
        state.update({(prefix + name, one): value
                      for one, p in zip(called, group["params"]) if id(p) in names
                      for name, value in inside(optimizer.state.get(p, {}))})
    setup.groups.append((kind.__name__, groups))
    if kind is type(optimizer):
        setup.state.update(hashed(state))
    else:
        setup.left_out.append(f"the state of {type(optimizer).__name__}")


def _unheld(of_models, optimizers, held):
    """Return what wants a gradient that nobody applies, of models that are trained."""
    trained = [any(id(p) in held for p in params.values()) for params in of_models]
    # beside one that is trained there may be a teacher or an average
    all_of_them = optimizers and (optimizers >= len(of_models) or not any(trained))
    return [name for params, mine in zip(of_models, trained) if mine or all_of_them
            for name, p in params.items() if p.requires_grad and id(p) not in held]
