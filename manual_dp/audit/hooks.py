"""Watch a rank's own code at work: what goes in, comes back, is summed, is applied.

    Watch     hooks on models, torch's optimizers, samplers, clipping, dist.all_reduce

    with Watch([model], say).on() as watch:
        watch.begin(t, batch)   the whole minibatch, None if it is not known
        step(model, *batch)     watch.note, a `Step`, and watch.forwards tell of it

Hooks note and change nothing. What a rank's own backward brings is heard at each
parameter, before DDP sums it. say: called at every forward, where a rank may hang.
"""

import threading
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim import optimizer as optim

from manual_dp.audit import apart, averaging, schedule, strangers
from manual_dp.audit.batch import Minibatch, doubles, tensors
from manual_dp.audit.clipping import Clips
from manual_dp.audit.closure import at_update
from manual_dp.audit.exact import random_states
from manual_dp.audit.fingerprint import Sketch, bit_hashes, holds, whole
from manual_dp.audit.functional import asked, homes, outside
from manual_dp.audit.loaders import Loaders
from manual_dp.audit.losses import Losses
from manual_dp.audit.plain import caller
from manual_dp.audit.records import Forward, Step
from manual_dp.audit.setup import named_parameters, rates, snapshot, unwrapped, wraps


class Watch:
    """Note what a step does with `models`; see the attributes."""

    def __init__(self, models, say=lambda forwards: None, keeps=True,
                 again=lambda: None, optimizers=()):
        self.models, self.modules = models, [unwrapped(model) for model in models]
        # keeps: forwards, to run them again. again: called before each forward
        self.say, self.keeps, self.again = say, keeps, again
        self.given, self.stepped = optimizers, []  # handed over; that took a step
        self.guessed = False  # did nobody say which models are to be watched?
        named = named_parameters(models)
        self.names, self.params = list(named), list(named.values())
        self.homes = homes(self.modules)
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.devices = list({p.device for p in self.params if p.is_cuda})
        self.sharded = any(hasattr(p, "to_local") for p in self.params)
        self.sketch = Sketch(self.params)
        self.note = Step()   # the one that goes on; between steps, of nobody
        self.optimizers = list(optimizers)  # all that are known
        self.forwards = []   # since the weights last changed
        self.before = None   # the weights that these forwards saw; first: their sketch
        self.last = None, None  # hashes and sketch of the weights after a step
        self.seen = None     # hashes of the weights at the last forward
        self.came, self.left = {}, {}  # of each parameter, since its last update
        self.clips, self.losses = Clips(self), Losses(self)
        self.loaders = Loaders()
        self.samplers = self.loaders.samplers  # every DistributedSampler in use
        self.lock, self.quiet, self.through, self.depth = threading.Lock(), False, "", 0

    def begin(self, t, nest=None):
        """Start to watch step t, on this minibatch."""
        self.batch = Minibatch(nest)
        self.note = Step(t, batch=self.batch.sum(), size=self.batch.size,
                         copies=self.batch.copies)
        self.updated, self.mine = {}, {}  # weights after the step: hashes, sketches
        self.until, self.pieces, self.stood = None, {}, {}
        self._keep()

    def _keep(self):
        if self.keeps and not self.forwards:
            self.before = None  # give the memory back first
            self.before = [p.detach().clone() for p in self.params]

    def _remember(self):
        """Keep the weights that a step begins with: a wrapper may have sent them."""
        self._keep()
        first, note = not self.note.all_rows, self.note
        now = bit_hashes(self.params) if first or not note.updates else None
        if first:
            note.start = snapshot(self.modules)
        if first and not self.keeps:
            note.before, self.first = now, self._sketched(now, self.params)
        if not note.updates:
            note.wanders |= not first and now != self.seen
            self.seen = now

    def _sketched(self, hashes, weights):
        """Return the sketch of the weights; they may be those after the last step."""
        return self.last[1] if hashes == self.last[0] else self.sketch(weights)

    @contextmanager
    def on(self):
        """Watch while the block runs."""
        with ExitStack() as self.stack, torch.compiler.set_stance("force_eager"):
            self.heard = set()
            for hook in self._hooks():
                self.stack.enter_context(hook)
            self._listen()
            yield self

    def _hooks(self):
        sums, reduce, draw = dist.all_reduce, dist.reduce, torch.manual_seed
        yield from (optim.register_optimizer_step_pre_hook(
            lambda *call: at_update(self._update, *call)),
            optim.register_optimizer_step_post_hook(
                lambda optimizer, *_: self._updated(optimizer)),
            mock.patch.object(dist, "all_reduce", lambda tensor, *args, **kwargs: (
                self._summed(tensor) or sums(tensor, *args, **kwargs))),
            mock.patch.object(torch, "manual_seed", lambda seed: (
                setattr(self.note, "seeded", (*self.note.seeded, seed)) or draw(seed))),
            mock.patch.object(dist, "reduce", lambda *args, **kwargs: (
                setattr(self.note, "reduced", True) or reduce(*args, **kwargs))))
        for part in (averaging, apart, schedule):
            yield from part.hooks(self)
        yield from self.clips.hooks()
        yield from self.loaders.hooks()
        if not self.keeps:  # nobody tells what a script's loss is
            yield from self.losses.hooks()
        for place, (model, module) in enumerate(zip(self.models, self.modules)):
            yield module.register_forward_pre_hook(
                lambda _, args, kwargs, place=place: self._forward(place, args, kwargs),
                with_kwargs=True, prepend=self.keeps or self.sharded)
            if model is not module:
                yield model.register_forward_pre_hook(
                    lambda model, _: self._outer(model))

    # forward

    def _outer(self, model):
        if torch.is_grad_enabled() and not self.quiet:
            with outside(self.homes):
                self.again()
        # torch's DDP sums in C++, in the backward of such a forward
        self.through = bool(getattr(model, "require_backward_grad_sync", False))
        self.note.wraps = wraps(model)
        if not self.quiet and torch.is_grad_enabled():  # it may hang before the module
            self.say(len(self.note.all_rows) + 1)

    def _forward(self, place, args, kwargs):
        if self.quiet or not torch.is_grad_enabled():
            return None
        with outside(self.homes):
            self.again()
        if self.quiet:
            return None
        if self.keeps:  # what was made in float32 by other means
            args, kwargs = doubles((args, kwargs))
        with self.lock:
            self._listen()
            inputs, module = tensors((args, kwargs)), self.modules[place]
            note = self.note
            rows = self.batch.seen(inputs)
            with outside(self.homes):
                self._remember()
            if self.keeps:
                self.forwards.append(Forward(
                    place, args, kwargs, rows,
                    self.batch.of(rows) if rows and self.batch else None,
                    {name: b.clone() for name, b in module.named_buffers()},
                    [m.training for m in module.modules()],
                    random_states(self.devices)))
            note.dealt.append(self.loaders.see(rows))
            note.all_rows.append(rows)
            if rows is None and inputs and inputs[0].is_floating_point():
                with suppress(RuntimeError):  # inside torch.func
                    note.inputs += bit_hashes(inputs[:1])
            note.numbers += sum(t.numel() for t in inputs[:1])
            note.synced += bool(self.through)
            self.through = False
            self.say(len(note.all_rows))
        return args, kwargs

    # backward

    def _listen(self):
        """Hear what comes back to each parameter, before all others do."""
        for i, p in enumerate(self.params):
            if i not in self.heard and p.requires_grad:
                self.heard.add(i)
                self.stack.enter_context(p.register_hook(
                    lambda grad, i=i: self._hear(i, grad)))
                *others, mine = p._backward_hooks.items()
                p._backward_hooks.clear()
                p._backward_hooks.update([mine, *others])

    @torch.no_grad()
    def _hear(self, i, grad):
        if self.quiet or self.losses.depth and asked(self.params[i]):
            return
        if self.depth:  # an optimizer that calls backward itself
            self.note.inside = True
            return
        self.losses.hear()
        held = self.params[i].grad
        held = None if held is None or not holds(held) else held
        if i not in self.came:  # the first since the last update
            self.left[i] = None if held is None else self.sketch.row(held)
        if i not in self.came or held is None:
            lost = self.came.get(i, ())  # what overflowed is rightly dropped
            self.note.cleared |= any(bool(row.isfinite().all() and row.any())
                                     for row in lost)
            self.came[i] = []
        self.came[i].append(self.sketch.row(grad))
        self.note.early |= self.clips.before.pop(i, None) is not None

    def _summed(self, tensor):
        # in a backward it is the network's own, or a hook's
        if not self.quiet and torch._C._current_graph_task_id() == -1:
            self.note.summed += tensor.numel()

    # update

    def _update(self, optimizer):
        if not (self.depth or self.quiet or self.keeps or self.note.all_rows):
            # no forward tells where a step begins: the model's other methods are called
            self.again() if any(optimizer is one for one in self.stepped) else None
            self._remember() if self.note.before is None else None
        self.depth += 1
        if self.depth > 1 or self.quiet:  # one inside another is a part of it
            return
        note, mine = self.note, rates(optimizer, self.index)
        strangers.note(self, optimizer, after=False)
        if not any(optimizer is one for one in self.optimizers):
            self.optimizers.append(optimizer)
        if not mine:
            note.foreign += 1
            self.stepped += [one for one in self.given if one is optimizer]
            return
        self.stepped.append(optimizer)
        if mine.keys() & note.rates.keys():
            note.updates += 1
            return  # the first update of a step is the one that is judged
        note.updates = max(note.updates, 1)
        note.kind, note.place = type(optimizer).__name__, caller()
        note.plain = note.kind == "SGD" and not any(
            group.get("momentum") or group.get("weight_decay")
            for group in optimizer.param_groups)
        note.rates.update(mine)
        used = self.sketch([self.params[i].grad if i in mine else None
                            for i in range(len(self.params))])
        note.early |= self.clips.undo(used, mine)
        if not self.sharded:
            note.used = used + (0 if note.used is None else note.used)
        self.take(mine)
        self.until = len(self.forwards)

    def take(self, mine):
        """Keep what came to these parameters as what this update is made of."""
        for i in mine:
            if i in self.came:
                self.pieces[i], self.stood[i] = self.came[i], self.left[i]

    def _updated(self, optimizer):
        self.depth -= 1
        if self.depth or self.quiet:
            return
        strangers.note(self, optimizer, after=True)
        schedule.count(self.note, id(optimizer))
        mine = list(rates(optimizer, self.index))
        for i in mine:
            for one in (self.came, self.clips.before, self.clips.after):
                one.pop(i, None)
        if self.note.updates and not self.sharded:
            self.updated.update(zip(mine, bit_hashes(self.params[i] for i in mine)))
            self.mine.update({i: self.sketch.row(self.params[i]) for i in mine})

    def end(self):
        """Write what came and what stands into the note of the step; return it."""
        note, self.note.lost = self.note, self.loaders.end()
        weights = [whole(p) for p in self.params] if self.keeps else self.params
        note.after, note.stepped = bit_hashes(weights), self.updated
        if self.keeps:
            before = [whole(p) for p in self.before]
            note.before = bit_hashes(before)
            self.first = self._sketched(note.before, before)
        note.weights = self.sketch(weights)
        self.last = note.after, note.weights
        if self.mine:
            note.mine = self.sketch.rows({**dict(enumerate(note.weights)), **self.mine})
        if note.before is not None:
            note.step = self.first - note.weights
            note.blur = float(self.first.norm())
        if not note.updates and note.moved:  # by hand
            self.take(list(self.came))
            self.came.clear()
        note.rows = [forward.rows for forward in self.forwards[:self.until]]
        most = max(map(len, self.pieces.values()), default=0)
        note.pieces = [self.sketch.rows({i: came[m] for i, came in self.pieces.items()
                                         if m < len(came)}) for m in range(most)]
        stood = {i: row for i, row in self.stood.items() if row is not None}
        note.left = self.sketch.rows(stood) if stood else None
        note.unreached = [i for i, p in enumerate(self.params) if p.requires_grad
                          and i not in self.pieces and i not in self.came
                          ] if self.pieces else []
        return note
