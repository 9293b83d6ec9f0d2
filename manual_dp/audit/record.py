"""Listen to a rank at work: from one update of its weights to the next.

What this rank's backward brings is heard at each parameter before anything sums it;
what the optimizer uses is read when it is about to step. An error in a hook ends the
listening, and not the training: `problem` says what it was.
"""

from contextlib import ExitStack, contextmanager
from functools import wraps
from unittest import mock

import torch
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optim
from torch.utils import _pytree

from manual_dp.audit import state
from manual_dp.audit.meet import caller
from manual_dp.audit.notes import Update
from manual_dp.audit.rows import Dealing, hashes
from manual_dp.audit.sketch import SIZE, Sketch, bit_hashes

CLIP = "_clip_grads_with_norm_"  # what clip_grad_norm_ calls


def quietly(hook):
    """Let no error of a hook out: it ends the listening."""
    @wraps(hook)
    def call(self, *args, **kwargs):
        try:
            return None if self.problem else hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is ours)
            self.problem = f"the steps: the audit met {type(error).__name__}: {error}"
            return None
    return call


class Recorder:
    """Record what happens to `models` while the block of `on` runs.

    cast: what is done with inputs before a forward. minibatch: of `rows`, or None.
    closed: called before an update begins, when the one before is complete.
    """

    def __init__(self, models, optimizers=(), others=(), cast=None, closed=None):
        self.models, self.modules = models, [*map(state.unwrapped, models)]
        self.optimizers, self.others, self.cast = [*optimizers], others, cast
        named = state.named(models, optimizers)
        self.names, self.params = [*named], [*named.values()]
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.sketch, self.dealing = Sketch(self.params), Dealing()
        self.inside = len(state.named(models))  # what follows stands beside
        self.updates, self.now, self.t, self.problem = [], Update(), 0, ""
        self.came, self.left, self.clipped = {}, {}, {}
        self.listens, self.reached = set(), set()
        self.minibatch, self.closed, self.depth, self.through = None, closed, 0, False

    def __reduce__(self):
        """Let a copy of the model, or its file, have hooks that hear nothing."""
        return _deaf, ()

    @contextmanager
    def on(self):
        """Listen while the block runs."""
        with ExitStack() as self.stack:
            self._hook_up()
            yield self

    @quietly
    def _hook_up(self):
        enter, seed = self.stack.enter_context, torch.manual_seed
        clip = getattr(clip_grad, CLIP, None)

        def seed_and_note(number):
            self.now.seeds.append(number)
            return seed(number)

        def clip_and_note(params, most, norm, *args, **kwargs):
            params = [params] if torch.is_tensor(params) else [*params]
            self._clip(params, most, norm)
            return clip(params, most, norm, *args, **kwargs)
        enter(torch.compiler.set_stance("force_eager"))
        enter(optim.register_optimizer_step_pre_hook(self._pre_step))
        enter(optim.register_optimizer_step_post_hook(self._post_step))
        enter(mock.patch.object(torch, "manual_seed", seed_and_note))
        if clip:
            enter(mock.patch.object(clip_grad, CLIP, clip_and_note))
        for patch in self.dealing.hooks():
            enter(patch)
        for model, module in zip(self.models, self.modules):
            enter(module.register_forward_pre_hook(
                self._forward, with_kwargs=True, prepend=True))
            enter(module.register_forward_hook(self._forwarded))
            if model is not module:
                enter(model.register_forward_pre_hook(self._wrapped))
        self._listen()

    # forward

    @quietly
    def _wrapped(self, model, _):
        self.through = bool(getattr(model, "require_backward_grad_sync", True))
        if torch.is_grad_enabled() and self.now.start is None:
            self._begin()  # here no compiled code is on its way

    @quietly
    def _forward(self, module, args, kwargs):
        if not torch.is_grad_enabled():
            return None
        if self.cast:
            args, kwargs = self.cast((args, kwargs))
        self._listen()
        if self.now.start is None:
            self._begin()
        elif self.cast:
            self.now.wanders |= self._has_moved()
        now = self.now
        tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if torch.is_tensor(t)]
        rows = (self.minibatch.find if self.minibatch else hashes)(tensors)
        now.rows.append(rows)
        now.synced += self.through
        self.through = False
        return args, kwargs

    @quietly
    def _forwarded(self, *_):
        if torch.is_grad_enabled() and len(self.now.rows) == 1:
            self.now.noisy |= self.now.rng != generator_hash()

    def _begin(self):
        now, weights = self.now, self.sketch(self.params)
        if self.updates and self.updates[-1].stop is None:
            self.settle(weights)
        if self.closed:
            self.closed()
        now.start, now.rng = weights, generator_hash()
        for i, model in enumerate(self.models):
            now.state |= state.of_model(model, state.prefix(self.models, i))

    def _has_moved(self):
        return not torch.equal(self.now.start, self.sketch(self.params))

    # backward

    def _listen(self):
        for i, p in enumerate(self.params):
            if i not in self.listens and p.requires_grad:
                self.listens.add(i)
                self.stack.enter_context(p.register_hook(
                    lambda grad, i=i: self._hear(i, grad)))
                *others, mine = p._backward_hooks.items()  # before all others
                p._backward_hooks.clear()
                p._backward_hooks.update([mine, *others])

    @quietly
    @torch.no_grad()
    def _hear(self, i, grad):
        if self.depth:  # an optimizer that calls backward itself: it is not followed
            self.now.used, self.now.pieces = None, []
            return
        self.dealing.trained()
        self.reached.add(i)
        held = self.params[i].grad
        empty = held is None or not bool(
            held._nnz() if held.layout != torch.strided else held.any())
        if i not in self.came:
            self.left[i] = None if empty else self.sketch.row(held)
        elif empty and i == min(self.came):
            self.now.terms.clear()  # what was cleared is not applied
        if i not in self.came or empty:
            self.came[i] = []
        self.came[i].append(self.sketch.row(grad))

    @quietly
    def _clip(self, params, most, norm):
        mine, most, norm = self._places(params), float(most), float(norm)
        self.now.clips += [(most, norm)] * bool(mine)
        for i in mine:
            self.clipped[i] = min(1.0, most / (norm + 1e-6)) * self.clipped.get(i, 1.0)

    # update

    @quietly
    def _pre_step(self, optimizer, args, kwargs):
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        self.depth += 1
        if self.depth > 1:  # one inside another is a part of it
            return None
        if not callable(closure) or type(optimizer).__name__ == "LBFGS":
            self._take(optimizer)
            return None
        self.depth -= 1  # as Lightning does: the closure is forward and backward

        def then(*more):
            loss = closure(*more)
            self.depth += 1
            self._take(optimizer)
            return loss
        return (args[0], then, *args[2:]), {
            name: x for name, x in kwargs.items() if name != "closure"}

    @quietly
    def _take(self, optimizer):
        mine = self._places(state.params_of(optimizer))
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
        if not mine:
            return
        if self.now.start is None:
            self._begin()
        now = self.now
        if not any(hasattr(p, "placements") for p in self.params):
            now.used = self.sketch([p.grad if i in mine else None
                                    for i, p in enumerate(self.params)])
            for i in self.clipped.keys() & mine:
                now.used[i] /= self.clipped[i] or 1.0
        now.held, now.line, now.drew = mine, caller(), now.rng != generator_hash()
        self._write_pieces(mine)

    def _places(self, params):
        return sorted({self.index[id(p)] for p in params if id(p) in self.index})

    def _write_pieces(self, held):
        came = {i: self.came[i] for i in held if self.came.get(i)}
        most = max(map(len, came.values()), default=0)

        def stacked(rows):
            zero = torch.zeros(SIZE, dtype=torch.float64, device="cpu")
            return torch.stack([rows.get(i, zero) for i in range(len(self.params))])
        self.now.pieces = [stacked({i: rows[m] for i, rows in came.items()
                                    if m < len(rows)}) for m in range(most)]
        left = {i: self.left[i] for i in came if self.left.get(i) is not None}
        self.now.left = stacked(left) if left else None

    @quietly
    def _post_step(self, optimizer, *_):
        self.depth = max(0, self.depth - 1)
        if not self.depth and self.now.held:
            self.now.after = self.sketch(self.params)
            self._close()

    def _close(self):
        self.now.t = self.t
        self.updates.append(self.now)
        for i in self.now.held or range(len(self.params)):
            self.came.pop(i, None)
            self.clipped.pop(i, None)
        self.now = Update()

    def settle(self, weights=None):
        """Note where the weights, the optimizers and others are after an update."""
        last = self.updates[-1]
        last.stop = self.sketch(self.params) if weights is None else weights
        apart = self.apart()
        names = {id(p): name for name, p in zip(self.names, self.params)
                 if name not in apart}
        shapes = {(*p.shape,) for p in self.params}
        for i, one in enumerate(self.optimizers):
            last.end |= state.of_optimizer(one, state.prefix(self.optimizers, i), names)
        for i, one in enumerate(self.others):
            last.end |= state.of_other(one, state.prefix(self.others, i), shapes)

    def apart(self):
        """Return names of what ranks need not have alike: parts, and masters."""
        return [name for i, (name, p) in enumerate(zip(self.names, self.params))
                if hasattr(p, "placements")
                or i >= self.inside and i not in self.reached]

    @quietly
    def end_step(self):
        """End a step of the audit; one that writes the weights by hand counts, too."""
        if self.now.start is not None and self._has_moved() and all(
                u.t != self.t for u in self.updates):
            self._write_pieces(range(len(self.params)))
            self.now.drew = self.now.rng != generator_hash()
            self._close()
        if self.updates and self.updates[-1].t == self.t:
            self.settle()


def _deaf():
    recorder = Recorder([])
    recorder.problem = "a copy"
    return recorder


def generator_hash():
    """Return a whole number, another one once torch's generator has drawn."""
    return bit_hashes([torch.get_rng_state()])[0]
