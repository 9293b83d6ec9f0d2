"""What a rank measures in an audit: small things, each by each step; no verdict yet.

    measure      build the model, take the steps under watch; return a `Run`
    parts        which of the things that were made are models, optimizers, others
    refused      the WrongType or WrongValue that the caller is told

All is computed in float64. After each step the ranks exchange sketches and hashes, over
a process group of the audit's own: the user's collectives do not get in between.
"""

import torch.distributed as dist
from torch import nn, optim

from manual_dp.audit.apart import left_alone
from manual_dp.audit.batch import arguments, doubles
from manual_dp.audit.exact import Drawing, exact
from manual_dp.audit.failure import Diary
from manual_dp.audit.hooks import Watch
from manual_dp.audit.memory import common, within
from manual_dp.audit.oracle import Device, gather
from manual_dp.audit.records import Run, Step
from manual_dp.audit.setup import ids_held, snapshot


class WrongType(TypeError):
    """Say that what the caller gave is of a wrong type."""


class WrongValue(ValueError):
    """Say that what the caller gave has a wrong value."""


def refused(error):
    """Return the TypeError or ValueError that a RankError is about, or None."""
    kind = {"WrongType": WrongType, "WrongValue": WrongValue}.get(error.cause)
    return kind and kind(str(error).partition(": ")[2])


def measure(make_model, make_batch, step, loss, count, steps, folder, fixes=False):
    """Take `steps` steps in this rank and return what was seen, a `Run`.

    fixes: give fixed numbers where a step draws.
    loss: None to try some, at world size 1, until one explains the gradient.
    """
    group = dist.new_group(backend="gloo")
    diary = Diary(folder, dist.get_rank())
    with exact() as left_out:
        made = make_model()
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        models, optimizers, others = parts(made)
        for one in made:
            if isinstance(one, nn.Module):
                one.double()
                _without_dropout(one)
        watch = Watch(models, lambda forwards: diary.note(forwards=forwards),
                      optimizers=optimizers)
        device, run = Device(watch, loss, count, group), begun(watch)
        first, *rest = gather((run.names, run.shapes), group)
        if any(layout != first for layout in rest):
            run.steps.append(Step(0, setup=snapshot(models)))
            return run  # nothing else can be compared
        diary.note(frozen=[name for name, p in zip(watch.names, watch.params)
                           if not p.requires_grad])
        with watch.on():
            for t in range(steps):
                diary.note(**{"step": t, "forwards": 0, "silent": None,
                              "in": "make_batch"})
                nest = _minibatch(make_batch, t)
                watch.begin(t, nest)
                diary.note(**{"in": "step"})
                left_out.clear()
                with Drawing(watch.note, fixes):
                    step(*arguments(step, made, nest))
                watch.note.drops = bool(left_out)
                diary.note(**{"in": "the end of step", "silent": silent(watch)})
                run.steps.append(watch.end())
                run.steps[-1].setup = snapshot(models, watch.optimizers, others)
                device.judge()
    run.loss, run.told = None if loss else device.loss, loss is not None
    run.failed = device.failed
    return run


def parts(made):
    """Return models, optimizers and others among what was made; refuse no model."""
    modules = [one for one in made if isinstance(one, nn.Module)]
    if not modules:
        raise WrongType("audit: make_model must return a module, or (module, "
                        "optimizer, ...), got "
                        + ", ".join(type(one).__name__ for one in made))
    optimizers = [one for one in made if isinstance(one, optim.Optimizer)]
    held = ids_held(optimizers)
    models = [one for one in modules if one is modules[0] or any(
        id(p) in held for p in one.parameters())]
    known = {id(one) for one in [*models, *optimizers]}
    return models, optimizers, [one for one in made if id(one) not in known]


def begun(watch):
    """Return the `Run` of a watch that begins."""
    return Run(
        watch.names, [tuple(p.shape) for p in watch.params], [],
        len(watch.models) > 1, sum(p.numel() for p in watch.params if p.requires_grad),
        _finds_unused(watch),
        left_alone(watch.models), within(watch),
        common(dict(zip(watch.names, watch.params))),
        samplers=watch.samplers, given=watch.loaders.given, sets=watch.loaders.sets,
        orders=watch.loaders.orders)


def _finds_unused(watch):
    return any(getattr(model, "find_unused_parameters", False)
               for model in watch.models)


def silent(watch):
    """Return names of parameters to which no gradient came, if to others one did."""
    known = watch.pieces.keys() | watch.came
    return [] if _finds_unused(watch) or not known else [
        watch.names[i] for i, p in enumerate(watch.params)
        if p.requires_grad and i not in known]


def _without_dropout(module):
    for one in module.modules():
        if isinstance(one, nn.RNNBase):
            one.dropout = 0.0


def _minibatch(make_batch, t):
    """Return make_batch(t), floats in float64; None without one."""
    if make_batch is None:
        return None
    nest = doubles(make_batch(t))
    if nest is None:
        raise WrongType(f"audit: make_batch({t}) returned None; give make_batch=None "
                        "where the step has a loader of its own")
    return nest
