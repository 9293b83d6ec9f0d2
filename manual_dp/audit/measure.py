"""What a rank measures in an audit: small things, each by each step; no verdict yet.

    measure      build the model, take the steps under watch; return a `Run`
    gather       a value of every rank, in a list
    apart        where ranks part in some tensors, a `Drift`
    refused      the WrongType or WrongValue that the caller is told

All is computed in float64. After each step the ranks exchange sketches and hashes, over
a process group of the audit's own: the user's collectives do not get in between.
"""

import math
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import oracle
from manual_dp.audit.fingerprint import bit_hashes, row_hashes
from manual_dp.audit.hypotheses import right_on_all
from manual_dp.audit.records import Drift, Run, Step
from manual_dp.audit.watch import Diary, Watch


class WrongType(TypeError):
    """Say that what the caller gave is of a wrong type."""


class WrongValue(ValueError):
    """Say that what the caller gave has a wrong value."""


def refused(error):
    """Return the TypeError or ValueError that a RankError is about, or None."""
    kind = {"WrongType": WrongType, "WrongValue": WrongValue}.get(error.cause)
    return kind and kind(str(error).partition(": ")[2])


def measure(make_model, make_batch, step, loss, count, steps, folder):
    """Take `steps` steps in this rank and return what was seen, a `Run`."""
    group = dist.new_group(backend="gloo")
    diary = Diary(folder, dist.get_rank())
    torch.set_default_dtype(torch.float64)  # the process ends with this call
    with _float64_before_ddp():
        made = make_model()
    model, *others = made if isinstance(made, (tuple, list)) else [made]
    if not isinstance(model, nn.Module):
        raise WrongType("audit: make_model must return a module, or (module, "
                        f"optimizer), got {type(model).__name__}")
    model.double()
    watch = Watch(model, lambda forwards: diary.note(forwards=forwards))
    run = Run(watch.names, [tuple(p.shape) for p in watch.params], [],
              sum(p.numel() for p in watch.params if p.requires_grad),
              bool(getattr(model, "find_unused_parameters", False)),
              _shared(watch.module), samplers=watch.samplers)
    first, *rest = gather((run.names, run.shapes), group)
    if any(layout != first for layout in rest):
        return run  # nothing else can be compared
    with watch.on():
        for t in range(steps):
            diary.note(**{"step": t, "forwards": 0, "in": "make_batch"})
            X, y = _whole_batch(make_batch, t)
            watch.begin(t, X, y)
            diary.note(**{"in": "step"})
            step(model, *others, X, y)
            diary.note(**{"in": "the end of step"})
            _close(watch, loss, count, group, run)
    return run


def _whole_batch(make_batch, t):
    """Return make_batch(t), floats in float64; refuse what no audit can follow."""
    X, y = make_batch(t)
    tensors = torch.is_tensor(X) and torch.is_tensor(y)
    if not tensors or not len(X) or len(X) != len(y):
        raise WrongType(f"audit: make_batch({t}) must return tensors X, y with as many "
                        "rows each, at least one")
    X, y = (v.double() if v.is_floating_point() else v for v in (X, y))
    if len(set(row_hashes(X))) < len(X):
        raise WrongValue(f"audit: make_batch({t}) returns equal rows in X; rows are "
                         "told apart by their numbers, so draw distinct ones")
    return X, y


def _shared(module):
    """Return the names of a parameter and another tensor on its memory, or None."""
    homes, params = {}, dict(module.named_parameters())
    for name, tensor in [*params.items(), *module.named_buffers()]:
        home = homes.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if home != name and home in params:
            return home, name
    return None


def _close(watch, loss, count, group, run):
    """End the step: compute what a single device would have done; write it down."""
    note, watch.note = watch.note, Step()
    run.steps.append(note)
    note.before, note.after = map(bit_hashes, (watch.before, watch.params))
    note.changed = watch.updated is not None and watch.updated != note.after
    done = watch.forwards[:watch.until] if note.updates else watch.forwards
    note.rows = [forward.rows for forward in done]
    if (note.updates or note.moved) and None not in note.rows:
        _compare(watch, loss, count, done, note)
    everyone = gather(note, group)
    if note.t == 0 and all(other.own is not None for other in everyone):
        _look_closer(watch, loss, count, done, note, everyone)
    if note.t == 0:
        run.drifts += apart("before", watch.before, everyone, group)
    if not run.drifts:
        run.drifts += apart("after", watch.params, everyone, group)
    if note.updates or note.moved:
        watch.forwards = []


def _compare(watch, loss, count, done, note):
    old = watch.sketch(watch.before)
    note.step, note.blur = old - watch.sketch(watch.params), float(old.norm())
    note.weight = sum(int(count(forward.targets)) for forward in done)
    grads = oracle.gradient(watch, done, loss, count)
    note.own = _held(watch, note, grads)
    note.unreached = [i for i, (g, p) in enumerate(zip(grads, watch.params))
                      if g is None and p.requires_grad]


def _held(watch, note, grads):
    """Sketch gradients; those of parameters that no optimizer holds count as 0."""
    return watch.sketch([g if not note.updates or i in note.rates else None
                         for i, g in enumerate(grads)])


def _look_closer(watch, loss, count, done, note, everyone):
    """Ask, in the first step, two more questions; all ranks answer the same ones."""
    if not right_on_all(everyone):
        note.turned = [_held(watch, note, oracle.gradient(
            watch, [f._replace(targets=watch.y.roll(by, 0)[f.rows]) for f in done],
            loss, count)) for by in (1, -1)]
    seen = sorted({row for other in everyone for rows in other.rows for row in rows})
    if len(everyone) > 1 and not watch.random and (
            grads := oracle.on_rows(watch, seen, loss, count)):
        note.whole = (_held(watch, note, grads) / int(count(watch.y[seen]))
                      / len(everyone))


def gather(value, group=None):
    """Return the value of every rank; all ranks must call this."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


@torch.no_grad()
def apart(when, tensors, notes, group=None):
    """Return [the `Drift` of the first tensor that differs], or [] if none does.

    notes: of every rank, with the hashes of `tensors`. All ranks must call this.
    """
    t, lists = notes[0].t, [getattr(note, when) for note in notes]
    if all(mine == lists[0] for mine in lists):
        return []
    if any(None in mine for mine in lists):
        return [Drift(t, when, None, [], math.inf)]
    i = next(i for i, values in enumerate(zip(*lists)) if len(set(values)) > 1)
    who = [rank for rank, mine in enumerate(lists) if mine[i] != lists[0][i]]
    first = tensors[i].detach().clone().contiguous()
    if dist.get_backend(group) == "gloo":
        first = first.cpu()
    dist.broadcast(first, 0, group=group)
    far = (tensors[i].double() - first.to(tensors[i].device).double()).abs()
    # inf where one of them is not a number
    far = float(far.nan_to_num(nan=math.inf).max())
    return [Drift(t, when, i, who, max(gather(far, group)))]


def _float64_before_ddp():
    """Let torch's DDP find float64: its buckets are made for one dtype, once."""
    real = DistributedDataParallel.__init__

    def init(ddp, module, *args, **kwargs):
        real(ddp, module.double(), *args, **kwargs)
    return mock.patch.object(DistributedDataParallel, "__init__", init)
