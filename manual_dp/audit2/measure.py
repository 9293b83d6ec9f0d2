"""What a rank measures: in an audit, by each step; small things, and no verdict.

    measure     build the model, take the steps, return a Run
    summary     the Run of what a Recorder heard
    arguments   what `step` is called with
"""

import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.modules.batchnorm import _BatchNorm

from manual_dp.audit2.exact import doubled, drawn, exact, without_dropout
from manual_dp.audit2.record import Recorder, Run
from manual_dp.audit2.rows import Minibatch
from manual_dp.audit2.state import params_of, parts

JOIN = "the steps: ranks with fewer rows are joined by others (Join)"
SHARDED = "the steps: FSDP1 shares out the parameters, which is not followed"
ALIKE = ("allreduce_hook", "noop_hook")  # of DDP's hooks: gradients are the usual ones


def measure(make_model, make_batch, step, steps):
    """Take `steps` steps in this rank, in float64; return a Run."""
    with exact():
        made = make_model()
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        models, optimizers, others = parts(made)
        for one in made:
            if isinstance(one, nn.Module):
                without_dropout(one)
        recorder = Recorder(models, optimizers, others, cast=doubled)
        run = summary(recorder)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (run.names, run.shapes, run.wants))
        if any(one != everyone[0] for one in everyone):
            return run
        joined = []
        enter = Join.__enter__
        Join.__enter__ = lambda self: joined.append(self) or enter(self)
        try:
            with recorder.on():
                for t in range(steps):
                    _take(recorder, run, t, make_batch, step, made)
        finally:
            Join.__enter__ = enter
        run.unjudged = run.unjudged or (JOIN if joined else "")
        return summary(recorder, run)


def _take(recorder, run, t, make_batch, step, made):
    """Take a step; note its minibatch, and whether it draws."""
    batch = doubled(make_batch(t)) if make_batch else None
    recorder.t = t
    recorder.minibatch = Minibatch(batch) if batch is not None else None
    before, count = drawn(made), len(recorder.updates)
    run.blurs = run.blurs or _blurs(recorder)
    step(*arguments(step, made, batch))
    drew = drawn(made) != before
    recorder.end_step()
    for update in recorder.updates[count:]:
        update.drew |= drew
        if batch is not None:
            update.batch = recorder.minibatch.size, recorder.minibatch.whole


def arguments(step, made, batch):
    """Return what `step` is called with: the parts of a batch, if it takes as many."""
    if batch is None:
        return made
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        for args in ([*made, *batch], [*made, batch]):
            try:
                inspect.signature(step).bind(*args)
                return args
            except TypeError:
                pass
        return [*made, *batch]
    return [*made, batch]


def summary(recorder, run=None):
    """Return the Run of what was recorded up to now; `run`, if given, is completed."""
    names, params = recorder.names, recorder.params
    if run is None:
        run = Run(names, [(*p.shape,) for p in params], [
            p.requires_grad for p in params])
    run.updates, run.samplers = recorder.updates, recorder.dealing.told
    run.idle = bool(recorder.now.rows)
    for model in recorder.models:
        run.own |= set(getattr(model, "parameters_to_ignore", ()))
        run.wrapped |= hasattr(model, "require_backward_grad_sync")
        if type(model).__name__ == "FullyShardedDataParallel":
            run.unjudged = SHARDED
        if getattr(getattr(model, "_join_config", None), "enable", False):
            run.unjudged = JOIN
    run.unjudged = run.unjudged or recorder.problem and f"the steps: {recorder.problem}"
    if not run.updates and not run.idle:
        return run
    _trained(recorder, run)
    run.broken = [n for n, p in zip(names, params) if p.is_floating_point() and not (
        hasattr(p, "to_local") or bool(p.isfinite().all()))]
    run.alias = _alias(recorder)
    return run


def _trained(recorder, run):
    """Note which parameters no optimizer holds, and which no backward reached."""
    held = {id(p) for one in recorder.optimizers for p in params_of(one)}
    trained = {id(p) for m in recorder.modules for p in m.parameters()
               if any(id(q) in held for q in m.parameters())}
    few = len(recorder.modules) <= len(recorder.optimizers)
    reached = {*recorder.came} | {i for u in run.updates for piece in u.pieces
                                  for i in piece.any(1).nonzero().flatten().tolist()}
    wanted = [(i, n, p) for i, (n, p) in enumerate(zip(recorder.names, recorder.params))
              if p.requires_grad]
    run.unheld = [n for _, n, p in wanted if held and id(p) not in held and (
        few or id(p) in trained)]
    unused = any(getattr(m, "find_unused_parameters", False) for m in recorder.models)
    run.silent = [n for i, n, _ in wanted if reached and not unused and i not in reached]


def _blurs(recorder):
    """Return why one device would step otherwise than ranks do, "" if it would not."""
    if any(isinstance(part, _BatchNorm) and part.training
           and not isinstance(part, nn.SyncBatchNorm)
           for module in recorder.modules for part in module.modules()):
        return "batch norm takes the statistics of a rank's own rows"
    for model in recorder.models:
        for hook, _ in getattr(model, "_comm_hooks", ()):
            if hook.__module__.startswith("torch.") and hook.__name__ not in ALIKE:
                return f"gradients are changed by the hook {hook.__name__}"
    return ""


def _alias(recorder):
    """Return the names of a parameter and another tensor on its memory, or None."""
    params = dict(zip(recorder.names, recorder.params))
    tensors = [*params.items(), *(x for m in recorder.modules
                                  for x in m.named_buffers())]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, name) for name, t in tensors
                   if t.layout == torch.strided and not hasattr(t, "to_local")
                   and t.numel() and t.is_contiguous())
    for (_, end, a), (start, _, b) in zip(spans, spans[1:]):
        if start < end and (a in params or b in params):
            return a, b
    return None
