"""Watch a rank's own code at work: what goes in, what is summed, what is applied.

    Watch     hooks on a model, on torch's optimizers, samplers and `dist.all_reduce`
    Diary     where the rank is, in a file: it stays when the rank hangs; read_diaries
    inner     the module that a DDP wraps
    told      what a DistributedSampler was told
    rates     each parameter's learning rate in an optimizer

    with Watch(model, say).on() as watch:
        watch.begin(t, X, y)    the whole minibatch
        step(model, X, y)       watch.note, a `Step`, and watch.forwards tell of it

Hooks note and never change anything. say: called at every forward, to leave a trace
where the rank may hang in the next line.
"""

import json
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.fingerprint import Sketch, bit_hashes, row_hashes
from manual_dp.audit.records import Forward, Sampler, Step
from manual_dp.files import write_json
from manual_dp.ranks.replica import Replica


def inner(model):
    """Return the module that a DDP wraps; any other model is returned as it is."""
    wrapped = isinstance(model, (DistributedDataParallel, Replica))
    return model.module if wrapped else model


def told(sampler):
    """Return what a DistributedSampler was told, a `Sampler`."""
    return Sampler(id(sampler), len(sampler.dataset), sampler.seed, sampler.epoch,
                   sampler.shuffle, sampler.num_replicas, sampler.rank)


def rates(optimizer, index):
    """Return {i: lr} of the parameters that it holds; index: {id: i} of the model's."""
    return {index[id(p)]: float(group["lr"]) for group in optimizer.param_groups
            for p in group["params"] if id(p) in index}


class Diary:
    """Say in a file of `folder` where the rank is."""

    def __init__(self, folder, rank):
        self.path = Path(folder) / f"rank-{rank}"
        self.path.parent.mkdir(exist_ok=True)
        self.now = {"step": None, "forwards": 0, "in": "make_model"}
        self.note()

    def note(self, **now):
        """Write down what is new."""
        self.now.update(now)
        write_json(self.path, self.now)


def read_diaries(folder):
    """Return {rank: what its diary says}."""
    return {int(path.name.removeprefix("rank-")): json.loads(path.read_text())
            for path in Path(folder).glob("rank-*")}


class Watch:
    """Note what a step does with `model`; see the attributes."""

    def __init__(self, model, say=lambda forwards: None):
        self.model, self.module, self.say = model, inner(model), say
        named = dict(self.module.named_parameters())
        self.names, self.params = list(named), list(named.values())
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.sketch = Sketch(self.params)
        self.note = Step()   # the one that goes on; between steps, of nobody
        self.forwards = []   # since the weights last changed
        self.before = None   # the weights that these forwards saw
        self.samplers = []   # every DistributedSampler that was iterated
        self.lock, self.quiet, self.through = threading.Lock(), False, False
        self.random = False  # does the model draw random numbers?

    def begin(self, t, X, y):
        """Start to watch step t, on the minibatch X, y."""
        self.X, self.y = X, y
        hashes = row_hashes(X)
        self.place = {h: row for row, h in enumerate(hashes)}
        self.note = Step(t, sum(hashes), len(X))
        self.updated = None  # hashes of the weights after the optimizer's step
        if not self.forwards:  # and again at the first forward: it may broadcast
            self._remember()

    def _remember(self):
        self.before = [p.detach().clone() for p in self.params]

    @contextmanager
    def on(self):
        """Watch while the block runs."""
        real_sum, real_order = dist.all_reduce, DistributedSampler.__iter__
        hooks = [
            self.module.register_forward_pre_hook(
                # no bound method: a copy of the module would copy this too
                lambda _, args, kwargs: self._forward(args, kwargs), with_kwargs=True),
            optim.register_optimizer_step_pre_hook(self._update),
            optim.register_optimizer_step_post_hook(self._updated),
            mock.patch.object(dist, "all_reduce", partial(self._all_reduce, real_sum)),
            mock.patch.object(DistributedSampler, "__iter__", lambda sampler: (
                self.samplers.append(told(sampler)) or real_order(sampler)))]
        hooks += [
            module.register_forward_pre_hook(lambda m, _: setattr(m, "training", False))
            for module in self.module.modules()  # or no two forwards would be alike
            if isinstance(module, nn.modules.dropout._DropoutNd)]
        if self.model is not self.module:
            hooks.append(self.model.register_forward_pre_hook(self._outer))
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook)
            yield self

    def _outer(self, model, args):
        # torch's DDP sums in C++, in the backward of such a forward
        self.through = getattr(model, "require_backward_grad_sync", False)
        if not self.quiet and torch.is_grad_enabled():
            # it may hang before the module is reached
            self.say(len(self.note.all_rows) + 1)

    def _forward(self, args, kwargs):
        if self.quiet or not torch.is_grad_enabled():
            return
        with self.lock:
            inputs = [a for a in [*args, *kwargs.values()] if torch.is_tensor(a)]
            rows = [self.place.get(h) for X in inputs[:1] for h in row_hashes(X)]
            rows = None if None in rows or not inputs else rows
            if not self.forwards:
                self._remember()
            buffers = {name: b.clone() for name, b in self.module.named_buffers()}
            if not self.note.all_rows:
                self.note.buffers = dict(zip(buffers, bit_hashes(buffers.values())))
            self.forwards.append(Forward(
                args, kwargs, rows, None if rows is None else self.y[rows], buffers,
                [m.training for m in self.module.modules()], torch.get_rng_state()))
            self.note.all_rows.append(rows)
            self.note.synced += bool(self.through)
            self.through = False
            self.say(len(self.note.all_rows))

    def _update(self, optimizer, args, kwargs):
        note, mine = self.note, rates(optimizer, self.index)
        if not mine:
            note.foreign += 1
            return
        if mine.keys() & note.rates.keys():
            note.updates += 1
            return  # the first update of a step is the one that is judged
        note.updates = max(note.updates, 1)
        note.kind = type(optimizer).__name__
        note.plain = note.kind == "SGD" and not any(
            group.get("momentum") or group.get("weight_decay")
            for group in optimizer.param_groups)
        note.rates.update(mine)
        grads = [p.grad if i in mine else None for i, p in enumerate(self.params)]
        note.used = self.sketch(grads) + (0 if note.used is None else note.used)
        self.until = len(self.forwards)

    def _updated(self, optimizer, args, kwargs):
        if self.note.updates:
            self.updated = bit_hashes(self.params)

    def _all_reduce(self, real, tensor, *args, **kwargs):
        if not self.quiet:
            self.note.summed += tensor.numel()
        return real(tensor, *args, **kwargs)
