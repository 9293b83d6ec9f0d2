"""What a rank measures in an audit, by each step: small things, and no verdict.

Steps are made comparable: float64 throughout, and no dropout. A step that draws random
numbers cannot be: `drawn` and `Drawing` tell.
"""

import dataclasses
import inspect
import pickle
import random
import sys
import zlib
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from manual_dp.audit.meet import Calls
from manual_dp.audit.notes import Run
from manual_dp.audit.record import Recorder, generator_hash
from manual_dp.audit.rows import Minibatch
from manual_dp.audit.sketch import bit_hashes
from manual_dp.audit.state import params_of, parts

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
            "feature_alpha_dropout")
JOIN = "the steps: ranks that have fewer rows are joined by others (Join)"
LOCAL = "the steps: ranks step on their own and average weights (local SGD)"
SHARDED = "the steps: FSDP1 shares out the parameters, which is not followed"


def measure(make_model, make_batch, step, steps, folder=None, seconds=0):
    """Take `steps` steps in this rank, in float64; return a Run.

    folder, seconds: of `Calls`, for a rank that hangs.
    """
    joined, enter, calls = [], Join.__enter__, Calls(folder, dist.get_rank(), seconds)
    if folder:
        calls.start()
    with exact() as masks, mock.patch.object(
            Join, "__enter__", lambda self: joined.append(1) or enter(self)):
        made = make_model()
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        for one in made:
            if isinstance(one, nn.Module):
                doubled(one)
        recorder = Recorder(*parts(made), cast=doubled)
        calls.count = lambda: len(recorder.updates)
        run, everyone = summary(recorder), [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (run.names, run.shapes, run.wants))
        if any(one != everyone[0] for one in everyone):
            return run
        with recorder.on():
            blurs = [_take(recorder, t, make_batch, step, made) for t in range(steps)]
    calls.done.set()
    found = summary(recorder)
    found.wants, found.blurs, found.masks = run.wants, max(blurs), masks
    found.unjudged = found.unjudged or JOIN * bool(joined)
    return found


def _take(recorder, t, make_batch, step, made):
    """Take a step; return why one device would step otherwise than ranks do."""
    batch = doubled(make_batch(t)) if make_batch else None
    recorder.t = t
    recorder.minibatch = None if batch is None else Minibatch(batch)
    before, count, blurs = drawn(made), len(recorder.updates), _blurs(recorder)
    with Drawing() as drawing:
        step(*arguments(step, made, batch))
    drew = drawn(made) != before
    recorder.end_step()
    for update in recorder.updates[count:]:
        update.drew |= drew
        update.drawn = drawing.hashes
        if batch is not None:
            update.batch = recorder.minibatch.size, recorder.minibatch.whole
    return blurs


def arguments(step, made, batch):
    """Return what `step` is called with: the parts of a batch, if it takes as many."""
    if batch is None:
        return made
    several = isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields")
    for args in [[*made, *batch], [*made, batch]] if several else []:
        with suppress(TypeError):
            inspect.signature(step).bind(*args)
            return args
    return [*made, *batch] if several else [*made, batch]


def summary(recorder):
    """Return the Run of what was recorded up to now."""
    names, params = recorder.names, recorder.params
    run = Run(names, [(*p.shape,) for p in params], [p.requires_grad for p in params],
              recorder.updates, recorder.dealing.told, idle=bool(recorder.now.rows))
    for model in recorder.models:
        run.wrapped |= hasattr(model, "require_backward_grad_sync")
        if type(model).__name__ == "FullyShardedDataParallel":
            run.unjudged = SHARDED
        if any("localSGD" in h.__name__ for h, _ in getattr(model, "_comm_hooks", ())):
            run.unjudged = LOCAL
        if getattr(getattr(model, "_join_config", None), "enable", False):
            run.unjudged = JOIN
    try:
        pickle.dumps(run.updates)
    except Exception:  # noqa: BLE001 (whatever torch says)
        run.updates, run.unjudged = [], "the steps: gradients of torch.func are taken"
    run.unjudged = run.unjudged or recorder.problem
    held = {id(p) for one in recorder.optimizers for p in params_of(one)}
    wanted = [(i, name, p) for i, (name, p) in enumerate(zip(names, params))
              if p.requires_grad and i < recorder.inside]
    moved = [False] * len(names)  # by copies of what is held
    if run.updates and run.updates[-1].stop is not None:
        moved = (run.updates[0].start != run.updates[-1].stop).any(1).tolist()
    run.unheld = [name for i, name, p in wanted
                  if held and id(p) not in held and not moved[i]]
    unused = any(getattr(m, "find_unused_parameters", False) for m in recorder.models)
    if recorder.reached and not unused:
        run.silent = [name for i, name, _ in wanted if i not in recorder.reached]
    run.apart = recorder.apart()
    run.broken = [n for n, p in zip(names, params) if p.is_floating_point() and not (
        hasattr(p, "to_local") or bool(p.isfinite().all()))]
    return run


def _blurs(recorder):
    parts = [part for module in recorder.modules for part in module.modules()]
    if any(isinstance(part, _BatchNorm) and part.training
           and not isinstance(part, nn.SyncBatchNorm) for part in parts):
        return "batch norm takes the statistics of a rank's own rows"
    hooks = [hook for model in recorder.models
             for hook, _ in getattr(model, "_comm_hooks", ())]
    names = [hook.__name__ for hook in hooks if hook.__module__.startswith("torch.")
             and hook.__name__ not in ("allreduce_hook", "noop_hook")]
    return f"gradients are changed by the hook {names[0]}" if names else ""


@contextmanager
def exact():
    """Compute in float64 and without dropout; yield what its first mask hung on."""
    masks = []

    def kept(x, p=0.5, training=True, inplace=False):
        if p and training and not masks:
            masks.append(generator_hash())
        return x
    attend, cast = F.scaled_dot_product_attention, torch.autocast.__init__
    wrap, single = DistributedDataParallel.__init__, torch.Tensor.float
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with ExitStack() as stack:
        for home, name, new in [
                *((F, name, kept) for name in DROPOUTS),
                (F, "scaled_dot_product_attention",
                 lambda *args, dropout_p=0.0, **kwargs: attend(*args[:4], **kwargs)),
                (nn.Module, "float", nn.Module.double),
                (torch.Tensor, "float",  # a scale of one number stays: torch wants it
                 lambda t, **kw: t.double() if t.numel() > 1 else single(t, **kw)),
                (torch.autocast, "__init__", lambda self, *args, **kwargs: cast(
                    self, *args, **{**kwargs, "enabled": False})),
                # its buckets are made for one dtype, once
                (DistributedDataParallel, "__init__", lambda self, module, *args, **kw:
                 wrap(self, module.double(), *args, **kw))]:
            stack.enter_context(mock.patch.object(home, name, new))
        stack.callback(torch.set_default_dtype, before)
        yield masks


def doubled(x):
    """Return a nest of tensors, or a module, in float64 and without dropout."""
    if isinstance(x, nn.Module):
        for part in x.double().modules():
            if isinstance(part, nn.RNNBase):
                part.dropout = 0.0
        return x
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(x, **{f.name: doubled(getattr(x, f.name))
                                         for f in dataclasses.fields(x) if f.init})
    if not _pytree.tree_is_leaf(x):
        return _pytree.tree_map(doubled, x)
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


def drawn(made=()):
    """Return a number that is another one once random numbers were drawn."""
    numpy = sys.modules.get("numpy")
    own = [g.get_state() for g in made if isinstance(g, torch.Generator)]
    states = [bytes(state.numpy()) for state in [torch.get_rng_state(), *own]]
    return zlib.crc32(repr([random.getstate(), numpy and numpy.random.get_state(),
                            states]).encode())


class Drawing(TorchFunctionMode):
    """Note hashes of what is drawn with generators of a step's own, in a block."""

    hashes = ()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function."""
        made = function(*args, **(kwargs or {}))
        if (kwargs or {}).get("generator") is not None and torch.is_tensor(made):
            self.hashes = (*self.hashes, *bit_hashes([made]))
        return made
