"""What a rank measures in an audit: small things, each by each step; no verdict yet.

    measure      build the model, take the steps under watch; return a `Run`
    parts        which of the things that were made are models, optimizers, others
    gather       a value of every rank, in a list
    refused      the WrongType or WrongValue that the caller is told

All is computed in float64. After each step the ranks exchange sketches and hashes, over
a process group of the audit's own: the user's collectives do not get in between.
"""

import warnings
from dataclasses import replace

import torch.distributed as dist
from torch import nn, optim
from torch.nn import functional as F

from manual_dp.audit import oracle
from manual_dp.audit.batch import arguments, doubles
from manual_dp.audit.exact import Drawing, exact
from manual_dp.audit.failure import Diary
from manual_dp.audit.hypotheses import right_on_all
from manual_dp.audit.records import Run, Step
from manual_dp.audit.setup import snapshot
from manual_dp.audit.hooks import Watch


class WrongType(TypeError):
    """Say that what the caller gave is of a wrong type."""


class WrongValue(ValueError):
    """Say that what the caller gave has a wrong value."""


def refused(error):
    """Return the TypeError or ValueError that a RankError is about, or None."""
    kind = {"WrongType": WrongType, "WrongValue": WrongValue}.get(error.cause)
    return kind and kind(str(error).partition(": ")[2])


# tried where no loss is given: the first that explains the gradient at world size 1
TRIED = (F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits, F.l1_loss,
         F.smooth_l1_loss, F.nll_loss)


def measure(make_model, make_batch, step, loss, count, steps, folder):
    """Take `steps` steps in this rank and return what was seen, a `Run`.

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
        watch = Watch(models, lambda forwards: diary.note(forwards=forwards))
        run = begun(watch)
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
                with Drawing(watch.note):
                    step(*arguments(step, made, nest))
                watch.note.drops = bool(left_out)
                diary.note(**{"in": "the end of step", "silent": silent(watch)})
                run.steps.append(watch.end())
                run.steps[-1].setup = snapshot(
                    models, [*optimizers, *(one for one in watch.optimizers
                                            if one not in optimizers)], others)
                if loss is None:
                    loss = run.loss = _explains(watch, count)
                _close(watch, loss, count, group)
    return run


def parts(made):
    """Return models, optimizers and others among what was made; refuse no model."""
    modules = [one for one in made if isinstance(one, nn.Module)]
    if not modules:
        raise WrongType("audit: make_model must return a module, or (module, optimizer, "
                        f"...), got {', '.join(type(one).__name__ for one in made)}")
    optimizers = [one for one in made if isinstance(one, optim.Optimizer)]
    held = {id(p) for one in optimizers for group in one.param_groups
            for p in group["params"]}
    models = [one for one in modules if one is modules[0] or any(
        id(p) in held for p in one.parameters())]
    known = {id(one) for one in [*models, *optimizers]}
    return models, optimizers, [one for one in made if id(one) not in known]


def begun(watch):
    """Return the `Run` of a watch that begins."""
    return Run(
        watch.names, [tuple(p.shape) for p in watch.params], [],
        sum(p.numel() for p in watch.params if p.requires_grad),
        any(getattr(model, "find_unused_parameters", False) for model in watch.models),
        _shared(watch), samplers=watch.samplers,
        norms=[type(module).__name__ for one in watch.modules
               for module in one.modules()
               if isinstance(module, nn.modules.batchnorm._BatchNorm)
               and not isinstance(module, nn.SyncBatchNorm)])


def silent(watch):
    """Return the names of parameters to which no gradient came, if to others one did."""
    known = watch.pieces.keys() | watch.came
    finds = any(getattr(model, "find_unused_parameters", False) for model in watch.models)
    return [] if finds or not known else [
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


def _shared(watch):
    """Return the names of a parameter and another tensor on its memory, or None."""
    params, spans = dict(zip(watch.names, watch.params)), []
    buffers = [named for module in watch.modules for named in module.named_buffers()]
    for name, tensor in [*params.items(), *buffers]:
        if not hasattr(tensor, "to_local") and tensor.numel() and tensor.is_contiguous():
            start = tensor.data_ptr()
            spans.append((start, start + tensor.nbytes, name, name in params))
    spans.sort()
    for (_, end, one, is_param), (start, _, other, is_too) in zip(spans, spans[1:]):
        if start < end and (is_param or is_too):
            return (one, other) if is_param else (other, one)
    return None


def _close(watch, loss, count, group):
    """Compute what `loss` says that a single device would have done, if it can."""
    note = watch.note
    done = watch.forwards[:watch.until]
    # all ranks run their forwards again, or none does: there may be collectives in them
    ready = _ready(watch)
    told = gather((ready, bool(note.updates or note.moved), bool(done)), group)
    if loss and all(each for each, *_ in told) and all(map(any, list(zip(*told))[1:])):
        note.own = _own(watch, loss, count, done)
        note.weight = sum(terms(forward, count) for forward in done)
    everyone = gather(note, group)
    if note.t == 0 and all(other.own is not None for other in everyone):
        if not right_on_all(everyone):
            note.turned = [_own(watch, loss, count, [
                f._replace(targets=watch.batch.of(rows(f.rows))) for f in done])
                for rows in (lambda rows: [row - 1 for row in rows],
                             lambda rows: [(row + 1) % note.size for row in rows],
                             lambda rows: [*range(len(rows))])]
    if note.updates or note.moved:
        watch.forwards = []


def _ready(watch):
    """Return whether the step's forwards can be run again, on rows that are known."""
    note = watch.note
    return (len(watch.models) == 1 and bool(watch.batch) and not note.inside
            and not note.copies and None not in note.rows and not watch.sharded)


def _explains(watch, count):
    """Return the loss that explains what is applied at world size 1, or None."""
    note = watch.note
    if dist.get_world_size() > 1 or not note.moved or not note.rows or not _ready(watch):
        return None
    done = watch.forwards[:watch.until]
    # at world size 1 targets may be shifted, too
    for loss in TRIED:
        for shift in (0, 1, -1) if loss in TRIED[:2] else (0,):
            shifted = [f._replace(targets=watch.batch.of(
                [(row - shift) % note.size for row in f.rows])) for f in done]
            try:
                with warnings.catch_warnings(action="ignore"):
                    own = _own(watch, loss, count, shifted if shift else done)
            except RuntimeError:
                break  # it was worth a try
            if own.any() and right_on_all([replace(note, own=own, weight=1)]):
                return loss
    return None


def _own(watch, loss, count, done):
    """Sketch the gradients of the rank's rows."""
    note = watch.note
    grads = oracle.gradient(watch, done, loss,
                            lambda forward: terms(forward, count))
    note.unreached = [i for i, (g, p) in enumerate(zip(grads, watch.params))
                      if g is None and p.requires_grad]
    return watch.sketch(grads)


def terms(forward, count):
    """Return what the loss over these rows is a mean of so many of."""
    return len(forward.rows) if count is len else int(count(forward.targets))


def gather(value, group=None):
    """Return the value of every rank; all ranks must call this."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone
