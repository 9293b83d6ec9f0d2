"""What a rank measures in an audit, by each step: small things, and no verdict.

Steps are made comparable: float64 throughout, and no dropout. A step that draws random
numbers cannot be: `drawn` tells.
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
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from manual_dp.audit.meet import Calls
from manual_dp.audit.notes import Run
from manual_dp.audit.record import Recorder
from manual_dp.audit.rows import Minibatch
from manual_dp.audit.state import params_of, parts

DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
JOIN = "the steps: ranks that have fewer rows are joined by others (Join)"
SHARDED = "the steps: ranks share out the parameters (FSDP), which is not followed"


def measure(make_model, make_batch, step, steps, folder=None, seconds=0):
    """Take `steps` steps in this rank, in float64; return a Run.

    folder, seconds: of `Calls`, for a rank that hangs.
    """
    calls = Calls(folder, dist.get_rank(), seconds)
    if folder:
        calls.start()
    with exact() as generators:
        made = make_model()
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        for one in made:
            if isinstance(one, nn.Module):
                doubled(one)
        recorder = Recorder(*parts(made), cast=doubled)
        calls.count = lambda: len(recorder.updates)
        with ExitStack() as stack:
            recorder.listen(stack)
            blurs = [
                _take(recorder, t, make_batch, step, made, generators)
                for t in range(steps)
            ]
    calls.done.set()
    found = summary(recorder)
    found.blurs = max(blurs)
    return found


def _take(recorder, t, make_batch, step, made, generators):
    """Take a step; return why one device would step otherwise than ranks do."""
    batch = doubled(make_batch(t)) if make_batch else None
    recorder.t = t
    recorder.minibatch = None if batch is None else Minibatch(batch)
    before, count = drawn(generators), len(recorder.updates)
    step(*arguments(step, made, batch))
    drew = "the step draws random numbers" * (drawn(generators) != before)
    recorder.end_step()
    for update in recorder.updates[count:] if batch is not None else ():
        update.batch = recorder.minibatch.size, recorder.minibatch.whole
    return recorder.wanders or drew or _blurs(recorder)


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
    wrapped = any(hasattr(m, "require_backward_grad_sync") for m in recorder.models)
    run = Run(
        names,
        [(*p.shape,) for p in params],
        recorder.updates,
        recorder.dealing.told,
        inside=recorder.inside,
        wrapped=wrapped,
        idle=bool(recorder.now.rows),
    )
    if any(
        type(m).__name__ == "FullyShardedDataParallel" for m in recorder.models
    ) or any(hasattr(p, "placements") for p in params):
        run.unjudged = SHARDED
    if any(
        getattr(getattr(m, "_join_config", None), "enable", False)
        for m in recorder.models
    ):
        run.unjudged = JOIN
    try:
        pickle.dumps(run.updates)
    except Exception:  # noqa: BLE001 (whatever torch says)
        run.updates, run.unjudged = [], "the steps: gradients of torch.func are taken"
    run.unjudged = run.unjudged or recorder.problem
    held = {id(p) for one in recorder.optimizers for p in params_of(one)}
    moved = [False] * len(names)  # by copies of what is held
    if run.updates and run.updates[-1].stop is not None:
        moved = (run.updates[0].start != run.updates[-1].stop).any(1).tolist()
    run.unheld = [
        name
        for i, (name, p) in enumerate(zip(names, params))
        if held and p.requires_grad and id(p) not in held and not moved[i]
    ]
    run.broken = [
        name
        for name, p in zip(names, params)
        if p.is_floating_point()
        and run.unjudged != SHARDED
        and not bool(p.isfinite().all())
    ]
    return run


def _blurs(recorder):
    parts = [part for module in recorder.modules for part in module.modules()]
    if any(
        isinstance(part, _BatchNorm)
        and part.training
        and not isinstance(part, nn.SyncBatchNorm)
        for part in parts
    ):
        return "batch norm takes the statistics of a rank's own rows"
    names = [
        hook.__name__
        for model in recorder.models
        for hook, _ in getattr(model, "_comm_hooks", ())
        if hook.__module__.startswith("torch.")
        and hook.__name__ not in ("allreduce_hook", "noop_hook")
    ]
    return f"gradients are changed by the hook {names[0]}" if names else ""


@contextmanager
def exact():
    """Compute in float64 and without dropout; yield the generators that are made."""
    generators = []

    class Noted(torch.Generator):
        def __init__(self, *args, **kwargs):
            generators.append(self)

    attend, cast = F.scaled_dot_product_attention, torch.autocast.__init__
    wrap, single = DistributedDataParallel.__init__, torch.Tensor.float
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with ExitStack() as stack:
        for home, name, new in [
            *((F, name, lambda x, *args, **kwargs: x) for name in DROPOUTS),
            (torch, "Generator", Noted),
            (
                F,
                "scaled_dot_product_attention",
                lambda *args, dropout_p=0.0, **kwargs: attend(*args[:4], **kwargs),
            ),
            (nn.Module, "float", nn.Module.double),
            (
                torch.Tensor,
                "float",  # a scale of one number stays: torch wants it
                lambda t, **kw: t.double() if t.numel() > 1 else single(t, **kw),
            ),
            (
                torch.autocast,
                "__init__",
                lambda self, *args, **kwargs: cast(
                    self, *args, **{**kwargs, "enabled": False}
                ),
            ),
            # its buckets are made for one dtype, once
            (
                DistributedDataParallel,
                "__init__",
                lambda self, module, *args, **kw: wrap(
                    self, module.double(), *args, **kw
                ),
            ),
        ]:
            stack.enter_context(mock.patch.object(home, name, new))
        stack.callback(torch.set_default_dtype, before)
        yield generators


def doubled(x):
    """Return a nest of tensors, or a module, in float64 and without dropout."""
    if isinstance(x, nn.Module):
        for part in x.double().modules():
            if isinstance(part, nn.RNNBase):
                part.dropout = 0.0
        return x
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x,
            **{
                f.name: doubled(getattr(x, f.name))
                for f in dataclasses.fields(x)
                if f.init
            },
        )
    if not _pytree.tree_is_leaf(x):
        return _pytree.tree_map(doubled, x)
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


def drawn(generators):
    """Return a number that is another one once random numbers were drawn."""
    numpy = sys.modules.get("numpy")
    own = [torch.get_rng_state(), *(one.get_state() for one in generators)]
    return zlib.crc32(
        repr(
            [
                random.getstate(),
                numpy and numpy.random.get_state(),
                [bytes(state.numpy()) for state in own],
            ]
        ).encode()
    )
