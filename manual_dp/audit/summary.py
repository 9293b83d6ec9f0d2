"""What a rank has heard up to now, as a Run that can be sent, and in words."""

from contextlib import suppress

import torch
from torch import nn

from manual_dp.audit.losses import SOME
from manual_dp.audit.notes import Run
from manual_dp.audit.private import has_parts, missing
from manual_dp.audit.report import few, plural
from manual_dp.audit.sketch import bit_hashes
from manual_dp.audit.state import is_shard, numbered, params_of, unwrapped

CLOSE = {torch.float64: 1e-7, torch.float32: 1e-4}  # of others 3e-2
JOIN = "the steps: ranks that have fewer rows are joined by others (Join)"
SHARDED = "the steps: ranks share out the parameters (FSDP), which is not followed"
BY_HAND = (
    "mistakes that one device makes as well (labels, rate, ...), terms that a loss "
    "gets by hand or from other ranks, losses that compare rows, averages outside the "
    "models, generators that the script made, evaluation, all later steps"
)
GLOBAL = "the generators of torch, random and numpy"
WORKERS = "random numbers that loaders' workers draw"
NO_END = "the end of an epoch: no loader had run out by the last of these steps"
NO_LOSS = "how much each row counts: no loss of torch.nn.functional was called"
CHOSEN = (
    "how the terms of a loss are chosen (a mask, the largest): each rank chooses among "
    "its own"
)


def summary(recorder):
    """Return the Run of what was recorded up to now."""
    names, params, models = recorder.names, recorder.params, recorder.models
    run = Run(
        names,
        [tuple(p.shape) for p in params],
        recorder.updates,
        recorder.dealing.told,
        inside=recorder.inside,
        fresh=recorder.fresh,
        idle=bool(recorder.now.rows),
    )
    run.unjudged = recorder.problem
    wrappers = recorder.wrappers()
    if any(facts.get("joined") for facts in wrappers):
        run.unjudged = JOIN
    kinds = {type(model).__name__ for model in models}
    if "FullyShardedDataParallel" in kinds or any(map(is_shard, params)):
        run.unjudged = SHARDED
    else:
        run.broken = _broken(recorder)
    run.unheld = _unheld(recorder)
    for (at, model), facts in zip(numbered(models), wrappers):
        ignored = [at + name for name in facts.get("ignored", ())]
        run.apart += [i for i, name in enumerate(names) if name in ignored]
        if facts:
            new = [
                at + name
                for name, p in unwrapped(model).named_parameters()
                if p.requires_grad and id(p) not in recorder.known.summed
            ]
            run.free |= {i: "new" for i, name in enumerate(names) if name in new}
    wrapped = {id(p) for m in models if m is not unwrapped(m) for p in m.parameters()}
    run.gathered = [(name, place) for place, name in recorder.gathered.items()]
    if wrapped:
        beside = [i for i, p in enumerate(params) if id(p) not in wrapped]
        run.free |= dict.fromkeys(beside, "beside")
    return run


def _broken(recorder):
    """Return the names of weights that are not finite: nor are their sketches."""
    if not recorder.updates or recorder.updates[-1].stop is None:
        return []
    finite = recorder.updates[-1].stop.isfinite().all(1).tolist()
    return [name for name, is_finite in zip(recorder.names, finite) if not is_finite]


def _unheld(recorder):
    """Return the names of what got a gradient and is held by no optimizer.

    In `audit_step` also of what got none. What moves all the same is not among them: an
    optimizer may hold a copy of it.
    """
    held = {id(p) for one in recorder.optimizers for p in params_of(one)}
    if not held:
        return []
    moved = [False] * len(recorder.params)
    if recorder.updates and recorder.updates[-1].stop is not None:
        first, last = recorder.updates[0].start, recorder.updates[-1].stop
        moved = (first != last).any(1).tolist()
    trained = set()
    for model in recorder.models:
        own = {id(p) for p in model.parameters()}
        if model is not unwrapped(model) or own & held:
            trained |= own
    names = []
    for i, (name, p) in enumerate(zip(recorder.names, recorder.params)):
        heard = recorder.cast or (i in recorder.came and id(p) in trained)
        if p.requires_grad and id(p) not in held and not moved[i] and heard:
            names.append(name)
    return names


def script_summary(recorder, known, whole):
    """Return the Run of a script, with what was looked at and what was not.

    whole: read data sets and silent modules, too. Once is enough.
    """
    if not recorder.problem:
        recorder.settle()
    run = summary(recorder)
    dtypes = [p.dtype.to_real() for p in recorder.params]
    run.close = max((CLOSE.get(dtype, 3e-2) for dtype in dtypes), default=1e-7)
    run.looked_at = _looked_at(recorder, run)
    run.not_looked_at = _not_looked_at(recorder, run)
    run.streamed = recorder.dealing.streamed()
    if not whole:
        return run
    with suppress(Exception):  # a data set that refuses to be read
        run.reads = recorder.dealing.read()
    for module in known.silent_modules():
        name, tensors = type(module).__name__, list(module.parameters())
        name = f"the weights of {name}, called without gradients,"
        if not tensors:
            name = f"the buffers of {type(module).__name__}"
            tensors = list(module.buffers())
        while name in run.silent:
            name += "'"
        run.silent[name] = bit_hashes(tensors)
    return run


def _looked_at(recorder, run):
    heard = sorted(recorder.heard)
    losses = plural(len(heard), "loss") + (f" ({', '.join(heard)})" if heard else "")
    batches = [rows for u in run.updates for rows in u.rows if rows]
    drew = sorted({name for u in run.updates for name in u.outside})
    rows = f"the rows of {plural(len(batches), 'forward')}, as models got them"
    rows = [rows] if batches else []  # a loader's may have been changed on the way
    parameters = plural(len(run.names), "parameter")
    return [
        plural(len(recorder.taken), "optimizer"),
        f"{parameters} of {plural(len(recorder.models), 'model')}",
        losses,
        *rows,
        f"random numbers that {GLOBAL} drew outside forwards "
        f"({', '.join(drew) or 'none'})",
    ]


def _not_looked_at(recorder, run):
    words = missing()
    layers = [layer for module in recorder.modules for layer in module.modules()]
    layers = [one for one in layers if not isinstance(one, nn.SyncBatchNorm)]
    if has_parts(layers, "batch norm"):
        rows = next((len(one) for u in run.updates for one in u.rows if one), 0)
        words.append(f"batch norm's own statistics: {plural(rows, 'row')} a rank")
    words += [f"the loss {name}" for name in sorted(recorder.unheard)]
    if any(name.endswith(SOME) for name in recorder.heard):
        words.append(CHOSEN)
    if not recorder.heard:
        words.append(NO_LOSS)
    forwards = [rows for u in run.updates for rows in u.rows]
    unread = sum(not rows for rows in forwards)
    if unread:
        of = plural(len(forwards), "forward")
        words.append(f"the rows of {unread} of {of}: no tensor with rows was found")
    if run.apart:
        names = few([run.names[i] for i in run.apart])
        words.append(f"parameters that DDP was told to ignore: {names}")
    if recorder.dealing.workers:
        words.append(WORKERS)
    if recorder.dealing.in_first_epoch():
        words.append(NO_END)
    return [*words, BY_HAND]
