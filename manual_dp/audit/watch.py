"""Watch a rank's own code at work: what goes in, what is summed, what is applied.

    Watch     hooks on a model, on torch's optimizers, samplers and `dist.all_reduce`
    Forward   one forward with gradients, kept so that it can be run again
    Diary     where the rank is, in a file: it stays when the rank hangs

    with Watch(model, say).on() as watch:
        watch.begin(X, y)       the whole minibatch
        step(model, X, y)       watch.forwards, .used, .rates, ... tell what it did

Hooks note and never change anything. say: called at every forward, to leave a trace
where the rank may hang in the next line.
"""

import json
import threading
from collections import namedtuple
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.fingerprint import Sketch, bit_hash, row_hashes
from manual_dp.ranks.replica import Replica

# rows: which of X, None where they are not recognised; targets: the rows' own y
Forward = namedtuple("Forward", "args kwargs rows targets buffers training rng synced")


def inner(model):
    """Return the module that a DDP wraps; any other model is returned as it is."""
    wrapped = isinstance(model, (DistributedDataParallel, Replica))
    return model.module if wrapped else model


class Diary:
    """Say in a file of `folder` where the rank is."""

    def __init__(self, folder, rank):
        self.path = f"{folder}/rank-{rank}"
        self.now = {"step": None, "forwards": 0, "in": "make_model"}
        self.note()

    def note(self, **now):
        """Write down what is new."""
        self.now.update(now)
        with open(self.path, "w") as file:
            json.dump(self.now, file)


class Watch:
    """Note what a step does with `model`; see the attributes."""

    def __init__(self, model, say=lambda forwards: None):
        self.model, self.module, self.say = model, inner(model), say
        named = dict(self.module.named_parameters())
        self.names, self.params = list(named), list(named.values())
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.sketch = Sketch(self.params)
        self.forwards = []   # since the weights last changed
        self.before = None   # the weights that these forwards saw
        self.samplers = []   # every DistributedSampler that was iterated
        self.lock, self.quiet, self.through = threading.Lock(), False, False
        self.random = False  # does the model draw random numbers?
        self._clear()

    def _clear(self):
        self.count = self.synced = self.summed = self.updates = self.calls = 0
        self.used, self.missing, self.rates = {}, [], {}
        self.kind, self.foreign, self.plain = None, 0, False
        self.buffers, self.after_update = [], None

    def begin(self, X, y):
        """Start to watch a step on the minibatch X, y."""
        self.X, self.y = X, y
        self.place = {h: row for row, h in enumerate(row_hashes(X))}
        if not self.forwards:  # and again at the first forward: it may broadcast
            self.before = [p.detach().clone() for p in self.params]
        self._clear()

    @contextmanager
    def on(self):
        """Watch while the block runs."""
        with ExitStack() as stack:
            for hook in (
                    self.module.register_forward_pre_hook(
                        # no bound method: a copy of the module would copy this too
                        lambda _, args, kwargs: self._forward(args, kwargs),
                        with_kwargs=True),
                    optim.register_optimizer_step_pre_hook(self._update),
                    optim.register_optimizer_step_post_hook(self._updated)):
                stack.callback(hook.remove)
            for module in self.module.modules():  # or no two forwards would be alike
                if isinstance(module, nn.modules.dropout._DropoutNd):
                    stack.callback(module.register_forward_pre_hook(
                        lambda m, _: setattr(m, "training", False)).remove)
            if self.model is not self.module:
                stack.callback(self.model.register_forward_pre_hook(self._outer).remove)
            stack.callback(setattr, dist, "all_reduce", dist.all_reduce)
            stack.callback(setattr, DistributedSampler, "__iter__",
                           DistributedSampler.__iter__)
            dist.all_reduce = self._counting(dist.all_reduce)
            DistributedSampler.__iter__ = self._noting(DistributedSampler.__iter__)
            yield self

    def _outer(self, model, args):
        # torch's DDP sums in C++, in the backward of such a forward
        self.through = getattr(model, "require_backward_grad_sync", False)
        if not self.quiet and torch.is_grad_enabled():
            self.say(self.count + 1)  # it may hang before the module is reached

    def _forward(self, args, kwargs):
        if self.quiet or not torch.is_grad_enabled():
            return
        with self.lock:
            inputs = [a for a in [*args, *kwargs.values()] if torch.is_tensor(a)]
            rows = [self.place.get(h) for h in row_hashes(inputs[0])] if inputs else []
            rows = None if None in rows or not inputs else rows
            if not self.forwards:
                self.before = [p.detach().clone() for p in self.params]
            buffers = {name: b.clone() for name, b in self.module.named_buffers()}
            self.buffers.append([int(bit_hash(b)) for b in buffers.values()])
            self.forwards.append(Forward(
                args, kwargs, rows, None if rows is None else self.y[rows], buffers,
                [m.training for m in self.module.modules()], torch.get_rng_state(),
                bool(self.through)))
            self.count += 1
            self.synced += bool(self.through)
            self.through = False
            self.say(self.count)

    def _update(self, optimizer, args, kwargs):
        mine = [(self.index[id(p)], p, group) for group in optimizer.param_groups
                for p in group["params"] if id(p) in self.index]
        self.foreign += not mine
        if not mine:
            return
        again = any(i in self.rates for i, *_ in mine)
        self.updates = max(self.updates + again, 1)
        if again:  # the first update of a step is the one that is judged
            return
        self.kind = type(optimizer).__name__
        self.plain = not any(group.get("momentum") or group.get("weight_decay")
                             for *_, group in mine)
        sketches = self.sketch([p.grad for _, p, _ in mine])
        for (i, p, group), row in zip(mine, sketches):
            self.used[i], self.rates[i] = row, float(group["lr"])
            if p.grad is None:
                self.missing.append(i)
        self.until = len(self.forwards)

    def _updated(self, optimizer, args, kwargs):
        if self.used:
            self.after_update = self.hashes()

    def hashes(self):
        """Return a whole number for each parameter's bits."""
        return [int(bit_hash(p)) for p in self.params]

    def _counting(self, real):
        def all_reduce(tensor, *args, **kwargs):
            if not self.quiet:
                self.summed += tensor.numel()
                self.calls += 1
            return real(tensor, *args, **kwargs)
        return all_reduce

    def _noting(self, real):
        def __iter__(sampler):
            self.samplers.append({
                "of": id(sampler), "rows": len(sampler.dataset), "seed": sampler.seed,
                "epoch": sampler.epoch, "shuffle": sampler.shuffle,
                "world_size": sampler.num_replicas, "rank": sampler.rank})
            return real(sampler)
        return __iter__
