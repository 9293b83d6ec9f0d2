"""What a rank measures in an audit: small things, each by each step; no verdict yet.

    measure      build the model, take the steps under watch; return the record, a dict
    whole_batch  what make_batch returns, if an audit can follow it
    farthest_parameter  the first that is not alike on all ranks

All is computed in float64. After each step the ranks exchange sketches and hashes, over
a process group of the audit's own: the user's collectives do not get in between.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import oracle
from manual_dp.audit.fingerprint import bit_hash, farthest, row_hashes
from manual_dp.audit.gradient import plain_right
from manual_dp.audit.watch import Diary, Watch


def measure(make_model, make_batch, step, loss, count, steps, folder, light=False):
    """Take `steps` steps in this rank and return what was seen, a dict.

    light: compute no gradient for comparison where an optimizer of torch's is seen.
    """
    rank, group = dist.get_rank(), dist.new_group(backend="gloo")
    diary = Diary(folder, rank)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _float64_before_ddp():
            made = make_model()
        model, *others = made if isinstance(made, (tuple, list)) else [made]
        _check(model)
        model.double()
        watch = Watch(model, lambda forwards: diary.note(forwards=forwards))
        record = {"names": watch.names, "steps": [], "drift": None,
                  "buffer_names": [name for name, _ in watch.module.named_buffers()],
                  "sizes": [p.numel() for p in watch.params],
                  "finds_unused": bool(getattr(model, "find_unused_parameters", 0)),
                  "frozen": [not p.requires_grad for p in watch.params]}
        with watch.on():
            for t in range(steps):
                diary.note(**{"step": t, "forwards": 0, "in": "make_batch"})
                X, y = whole_batch(make_batch, t)
                watch.begin(X, y)
                diary.note(**{"in": "step"})
                step(model, *others, X, y)
                diary.note(**{"in": "the end of step"})
                record["steps"].append(_close(watch, loss, count, t, group, record,
                                              light))
        return {**record, "samplers": watch.samplers}
    finally:
        torch.set_default_dtype(before)


def whole_batch(make_batch, t):
    """Return make_batch(t), floats in float64; refuse what no audit can follow."""
    X, y = make_batch(t)
    tensors = torch.is_tensor(X) and torch.is_tensor(y)
    if not tensors or not len(X) or len(X) != len(y):
        raise TypeError(f"audit: make_batch({t}) must return tensors X, y with as many "
                        "rows each, at least one")
    X, y = (v.double() if v.is_floating_point() else v for v in (X, y))
    if len(set(row_hashes(X))) < len(X):
        raise ValueError(f"audit: make_batch({t}) returns equal rows in X; rows are "
                         "told apart by their numbers, so draw distinct ones")
    return X, y


def _close(watch, loss, count, t, group, record, light):
    """Return the step's record; compute what a single device would have done."""
    hashes = watch.hashes()
    before = [int(bit_hash(p)) for p in watch.before]
    moved = hashes != before
    done = watch.forwards[:watch.until] if watch.updates else watch.forwards
    rows = [f.rows for f in done]
    note = {
        "batch": sum(row_hashes(watch.X)), "size": len(watch.X), "rows": rows,
        "all_rows": [f.rows for f in watch.forwards[-watch.count:]] * (watch.count > 0),
        "forwards": watch.count, "synced": watch.synced, "summed": watch.summed,
        "updates": watch.updates, "moved": moved, "kind": watch.kind,
        "plain": watch.plain, "rates": watch.rates, "missing": watch.missing,
        "foreign": watch.foreign, "buffers": watch.buffers, "after": hashes,
        "before": before, "weight": 0,
        "changed": watch.after_update is not None and watch.after_update != hashes,
        "used": None, "own": None, "unreached": []}
    if (not light if watch.updates else moved) and None not in rows:
        _judgeable(watch, loss, count, done, note)
    everyone = _gather(note, group)
    if all(other["own"] is not None for other in everyone):
        note["turned"] = note["whole"] = None
        if t == 0:
            _look_closer(watch, loss, count, done, note, everyone)
    if record["drift"] is None:
        record["drift"] = _drift(watch, t, everyone, group)
    if watch.updates or moved:
        watch.forwards = []
    return note


def _judgeable(watch, loss, count, done, note):
    old = watch.sketch(watch.before)
    note["step"], note["blur"] = old - watch.sketch(watch.params), float(old.norm())
    if watch.updates:
        note["used"] = torch.zeros_like(old)
        for i, row in watch.used.items():
            note["used"][i] = row
    note["weight"] = sum(int(count(f.targets)) for f in done)
    grads = oracle.gradient(watch, done, loss, count)
    note["own"] = _held(watch, grads)
    note["unreached"] = [i for i, (g, p) in enumerate(zip(grads, watch.params))
                         if g is None and p.requires_grad]


def _held(watch, grads):
    """Sketch gradients; those of parameters that no optimizer holds count as 0."""
    return watch.sketch([g if not watch.updates or i in watch.rates else None
                         for i, g in enumerate(grads)])


def _look_closer(watch, loss, count, done, note, everyone):
    """Ask, in the first step, two more questions; all ranks answer the same ones."""
    if not plain_right(everyone):
        note["turned"] = [_held(watch, oracle.gradient(
            watch, done, loss, count, [watch.y.roll(by, 0)[f.rows] for f in done]))
            for by in (1, -1)]
    if len(everyone) == 1 or watch.random:
        return
    seen = sorted({row for other in everyone for rows in other["rows"] for row in rows})
    grads = oracle.on_rows(watch, seen, loss, count)
    if grads is not None:
        note["whole"] = (_held(watch, grads) / int(count(watch.y[seen]))
                         / len(everyone))


def _gather(value, group):
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def _drift(watch, t, everyone, group):
    """Return (step, "before" or "after", parameter, distances) where ranks part."""
    for when in ("before", "after") if t == 0 else ("after",):
        lists = [other[when] for other in everyone]
        if any(mine != lists[0] for mine in lists):
            tensors = watch.before if when == "before" else watch.params
            return t, when, *farthest_parameter(tensors, lists, group)
    return None


@torch.no_grad()
def farthest_parameter(tensors, lists, group=None):
    """Return (index, [distance of each rank to rank 0]) of the first that differs.

    lists: the hashes of `tensors` on every rank. All ranks must call this.
    """
    i = next(i for i in range(len(lists[0]))
             if any(mine[i] != lists[0][i] for mine in lists))
    first = tensors[i].detach().clone().contiguous()
    if dist.get_backend(group) == "gloo":
        first = first.cpu()
    dist.broadcast(first, 0, group=group)
    return i, _gather(farthest(tensors[i], first), group)


@contextmanager
def _float64_before_ddp():
    """Let torch's DDP find float64: its buckets are made for one dtype, once."""
    real = DistributedDataParallel.__init__

    def init(ddp, module, *args, **kwargs):
        real(ddp, module.double(), *args, **kwargs)
    DistributedDataParallel.__init__ = init
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = real


def _check(model):
    if not isinstance(model, nn.Module):
        raise TypeError("audit: make_model must return a module, or (module, "
                        f"optimizer), got {type(model).__name__}")
