"""What a single device would have done: gradients of forwards that are run once more.

    Device      note it in each step; without a loss, find one at world size 1
    gradient    of the sum over a rank's rows of their loss, forward by forward
    gather      a value of every rank, in a list

The module is called with copies of its parameters and buffers, so its own stay as they
are, and no hook that averages gradients hears of it. Once that has shown that what came
back to the parameters is the loss's gradient, what comes back in further steps of the
same kind is taken for it: to run all forwards again would double the time.
"""

import warnings
from collections.abc import Mapping
from dataclasses import is_dataclass, replace

import torch
import torch.distributed as dist
from torch.func import functional_call
from torch.nn import functional as F

from manual_dp.audit.batch import changed, tensors
from manual_dp.audit.exact import set_random_states
from manual_dp.audit.hypotheses import mixture, right_on_all

# tried where no loss is given: the first that explains the gradient at world size 1
TRIED = (F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits, F.l1_loss,
         F.smooth_l1_loss, F.nll_loss)

CALLED = "y", "labels", "label", "targets", "target"  # of a dict or dataclass


class Device:
    """Note in each step that is watched what `loss` says that one device would do.

    loss: a mean of count(y) terms; None to try some, at world size 1.
    """

    def __init__(self, watch, loss, count, group):
        self.watch, self.loss, self.count, self.group = watch, loss, count, group
        # the kind of step in which what came back, `times` so much, was the loss's
        self.kind, self.times = None, 1.0
        self.way, self.failed = 0, ""  # which of `ways` is y; why no loss can be had

    def judge(self):
        """Write the rank's own gradient into the note of the step, if it can be had."""
        watch, note = self.watch, self.watch.note
        done, took = watch.forwards[:watch.until], bool(note.updates or note.moved)
        ready = self._ready()
        if self.loss is None and ready and note.moved and dist.get_world_size() == 1:
            self.loss = self._explains(done)
        ready = ready and self.loss is not None and not self.failed
        note.weight = sum(map(self._terms, done)) if ready else 0
        kind = note.weight, [len(rows) for rows in note.rows or [] if rows], len(
            note.pieces)
        # all ranks run their forwards again, or none does: there may be collectives in
        # them
        all_ready, took_step, some, known = zip(*gather(
            (ready, took, bool(done), kind == self.kind), self.group))
        if all(all_ready) and any(took_step) and any(some):
            if all(known):
                note.own = self.times * note.came
            else:
                self._run_again(done, kind)
        if took:
            watch.forwards = []

    def _run_again(self, done, kind):
        note, batch, self.kind = self.watch.note, self.watch.batch, None
        if note.own is None:
            self._try_ways(done)
        # what fails on one rank fails on all, as collectives may be in it
        [self.failed, *_] = [*filter(None, gather(self.failed, self.group)), ""]
        if self.failed:
            note.own = None
            return
        if right_on_all(gather(note, self.group)):
            came = mixture(note.own, [note.came]) if note.pieces else None
            if came:
                self.kind, [self.times] = kind, came
        elif note.t == 0:
            others = [other_rows(f.rows, note.size) for f in done]
            # micro-batches of other sizes are shifted by other numbers of rows
            note.turned = {how: self._own(
                [f._replace(targets=batch.of(rows[how])) for f, rows in zip(
                    done, others)], self.loss)
                for how in others[0] if all(how in rows for rows in others)}

    def _try_ways(self, done):
        """Note the rank's own gradient; find out which part of the batch is y."""
        targets, self.failed = [ways(f.targets) for f in done], "?"
        while self.failed and self.way < max(map(len, targets), default=1):
            try:
                self.watch.note.weight = sum(map(self._terms, done))
                self.watch.note.own = self._own(done, self.loss)
                self.failed = ""
            except (RuntimeError, TypeError, ValueError, LookupError) as error:
                self.failed = self.failed.strip("?") or str(error)
                self.way += 1

    def _ready(self):
        """Return whether the forwards can be run again, on rows that are known."""
        watch, note = self.watch, self.watch.note
        return (len(watch.models) == 1 and bool(watch.batch) and not note.inside
                and not note.copies and None not in note.rows and not watch.sharded)

    def _explains(self, done):
        """Return the loss that explains what is applied at world size 1, or None."""
        note, batch = self.watch.note, self.watch.batch
        # at world size 1 targets may be shifted, too
        for loss in TRIED if done else ():
            for shift in (0, 1, -1) if loss in TRIED[:2] else (0,):
                shifted = [f._replace(targets=batch.of(
                    [(row - shift) % note.size for row in f.rows])) for f in done]
                try:
                    with warnings.catch_warnings(action="ignore"):
                        own = self._own(shifted if shift else done, loss)
                except RuntimeError:
                    break  # it was worth a try
                if own.any() and right_on_all([replace(note, own=own, weight=1)]):
                    note.own = None if shift else own
                    return loss
        return None

    def _own(self, done, loss):
        """Sketch the gradients of the rank's rows."""
        watch = self.watch
        grads = gradient(watch, done, loss, self._terms, self.way)
        watch.note.unreached = [i for i, (g, p) in enumerate(zip(grads, watch.params))
                                if g is None and p.requires_grad]
        return watch.sketch(grads)

    def _terms(self, forward):
        """Return what the loss over these rows is a mean of so many of."""
        if self.count is len:
            return len(forward.rows)
        try:
            return int(self.count(ways(forward.targets)[self.way]))
        except (TypeError, ValueError, LookupError, RuntimeError, AttributeError):
            return 0  # of another part of the batch: see `_try_ways`


def gather(value, group=None):
    """Return the value of every rank; all ranks must call this."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def other_rows(rows, size):
    """Return whose targets may have been taken for those of these rows.

    A dict: what is said of them, and the rows.
    """
    rank, world_size, count = dist.get_rank(), dist.get_world_size(), len(rows)
    shifts = {f"that are shifted by {by} row{'s' * (abs(by) > 1)} against X":
              [(row - by) % size for row in rows] for by in (1, -1, count, -count)}
    return shifts | {
        "of the minibatch's first rows": [row % size for row in range(count)],
        "that are cut into chunks, as X is not": [
            (rank * count + i) % size for i in range(count)],
        "that are dealt out in turns, as X is not": [
            (rank + i * world_size) % size for i in range(count)]}


def ways(targets):
    """Return what may be y of the targets: they are it; or a part of them is."""
    if isinstance(targets, (tuple, list)):
        return [targets, *targets[-1:]]
    parts = targets if isinstance(targets, Mapping) else vars(targets) if is_dataclass(
        targets) else {}
    return [targets, *(parts[name] for name in CALLED if name in parts)]


def gradient(watch, forwards, loss, terms, way=0):
    """Return the gradient, a list with None where a parameter was not used.

    watch: a `Watch`, whose `before` are the weights to take. loss: of outputs and
    targets, a mean; here every forward's counts terms(forward) times. way: see `ways`.
    """
    params = {name: p.clone().requires_grad_(q.requires_grad) for name, p, q in
              zip(watch.names, watch.before, watch.params)}
    wanted = [p for p in params.values() if p.requires_grad]
    for forward in forwards:
        if not forward.rows:
            continue
        try:
            y_hat = _again(watch, params, forward)
            # the minibatch may be on the CPU, and the model somewhere else
            homes = [t.device for t in tensors(y_hat)[:1]]
            targets = changed(ways(forward.targets)[way],
                              lambda t, homes=homes: t.to(*homes))
            (terms(forward) * loss(y_hat, targets)).backward(inputs=wanted)
        except Exception as error:
            raise RuntimeError(f"the loss of the model's output cannot be had ({error})"
                               ) from error
    return [p.grad for p in params.values()]


def _again(watch, params, forward):
    module = watch.modules[forward.model]
    modules = list(module.modules())
    modes = [m.training for m in modules]
    buffers = {name: b.clone() for name, b in forward.buffers.items()}
    watch.quiet = True
    try:
        with torch.random.fork_rng(watch.devices), torch.enable_grad():
            set_random_states(watch.devices, forward.rng)
            for m, mode in zip(modules, forward.training):
                m.training = mode
            return functional_call(module, (params, buffers), forward.args,
                                   forward.kwargs)
    finally:
        watch.quiet = False
        for m, mode in zip(modules, modes):
            m.training = mode
