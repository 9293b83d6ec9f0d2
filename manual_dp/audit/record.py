"""Listen to a rank at work: from one update of its weights to the next.

What this rank's backward brings is heard at each parameter before anything sums it;
what the optimizer uses is read when it is about to step. An error in a hook ends the
listening, and not the training: `problem` says what it was.
"""

from contextlib import suppress
from functools import wraps
from unittest import mock

import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optim
from torch.utils import _pytree

from manual_dp.audit import state
from manual_dp.audit.meet import caller
from manual_dp.audit.notes import Update
from manual_dp.audit.rows import Dealing, hashes
from manual_dp.audit.sketch import Sketch, bit_hashes, stacked

CLIP = "_clip_grads_with_norm_"  # what clip_grad_norm_ calls
LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)


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
    """Record what happens to `models` while it listens.

    cast: what is done with inputs before a forward. minibatch: of `rows`, or None.
    closed: called before an update begins, when the one before is complete. problem:
    why nothing is heard.
    """

    def __init__(self, models, optimizers=(), cast=None, closed=None, problem=""):
        self.models, self.modules = models, [*map(state.unwrapped, models)]
        self.optimizers, self.cast = [*optimizers], cast
        named = state.named(models, optimizers)
        self.names, self.params = [*named], [*named.values()]
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.sketch, self.dealing = Sketch(self.params), Dealing()
        self.inside = len(state.named(models))  # others stand beside: parts, masters
        self.updates, self.now, self.t, self.problem = [], Update(), 0, problem
        self.came, self.left, self.clipped = {}, {}, {}
        self.listens, self.wanders = set(), ""
        self.minibatch, self.closed, self.depth, self.through = None, closed, 0, False

    def __reduce__(self):
        """Let a copy of the model, or its file, have hooks that hear nothing."""
        return Recorder, ([], (), None, None, "a copy")

    @quietly
    def listen(self, stack):
        """Listen until this ExitStack is closed."""
        self.stack = stack
        enter, clip = self.stack.enter_context, getattr(clip_grad, CLIP, None)

        def clip_and_note(params, most, norm, *args, **kwargs):
            params = [params] if torch.is_tensor(params) else [*params]
            self._clip(params, most, norm)
            return clip(params, most, norm, *args, **kwargs)

        enter(torch.compiler.set_stance("force_eager"))
        enter(optim.register_optimizer_step_pre_hook(self._pre_step))
        enter(optim.register_optimizer_step_post_hook(self._post_step))
        if clip:
            enter(mock.patch.object(clip_grad, CLIP, clip_and_note))
        for patch in self.dealing.hooks():
            enter(patch)
        for model, module in zip(self.models, self.modules):
            enter(
                module.register_forward_pre_hook(
                    self._forward, with_kwargs=True, prepend=True
                )
            )
            enter(module.register_forward_hook(self._forwarded))
            if model is not module:
                enter(model.register_forward_pre_hook(self._wrapped))
        self._to_backward()

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
        self._to_backward()
        if self.now.start is None:
            self._begin()
        elif self.cast and not torch.equal(self.now.start, self.sketch(self.params)):
            self.wanders = "weights move between the forwards of a step"
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
        self.settle(weights)
        if self.closed:
            self.closed()
        now.start, now.rng = weights, generator_hash()
        for at, model in state.numbered(self.models):
            now.state |= state.of_model(model, at)

    # backward

    def _to_backward(self):
        for i, p in enumerate(self.params):
            if i not in self.listens and p.requires_grad:
                self.listens.add(i)
                self.stack.enter_context(
                    p.register_hook(lambda grad, i=i: self._hear(i, grad))
                )
                *others, mine = p._backward_hooks.items()  # before all others
                p._backward_hooks.clear()
                p._backward_hooks.update([mine, *others])

    @quietly
    @torch.no_grad()
    def _hear(self, i, grad):
        self.dealing.trained()
        held = self.params[i].grad
        empty = held is None or not float(held.norm())
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
        self.depth += 1
        if self.depth > 1:  # one inside another is a part of it
            return
        if self.now.start is None:
            self._begin()
        if not callable(kwargs.get("closure") or (args[1] if len(args) > 1 else None)):
            self._take(optimizer)

    @quietly
    def _post_step(self, optimizer, *_):
        self.depth = max(0, self.depth - 1)
        if self.depth:
            return
        if not self.now.held:  # a closure, as Lightning's, is forward and backward
            self._take(optimizer)
        if self.now.held:
            self.now.after = self.sketch(self.params)
            self._close()

    def _take(self, optimizer):
        mine, now = self._places(state.params_of(optimizer)), self.now
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
        if not mine:
            return
        now.used = self.sketch(
            [p.grad if i in mine else None for i, p in enumerate(self.params)]
        )
        for i in self.clipped.keys() & mine:
            now.used[i] /= self.clipped[i] or 1.0
        now.held, now.line = mine, caller()
        self._write_pieces(mine)

    def _places(self, params):
        return sorted({self.index[id(p)] for p in params if id(p) in self.index})

    def _write_pieces(self, held):
        came = [
            self.came.get(i, []) if i in held else [] for i in range(len(self.params))
        ]
        left = [self.left[i] if rows else None for i, rows in enumerate(came)]
        most = max(map(len, came), default=0)
        self.now.pieces = [
            stacked([rows[m] if m < len(rows) else None for rows in came])
            for m in range(most)
        ]
        self.now.left = stacked(left) if any(x is not None for x in left) else None

    def _close(self):
        self.now.t = self.t if self.cast else len(self.updates)
        for at, one in state.numbered(self.optimizers):
            self.now.state |= state.of_options(one, at)
        self.updates.append(self.now)
        for i in self.now.held or range(len(self.params)):
            self.came.pop(i, None)
            self.clipped.pop(i, None)
        self.now = Update()

    def settle(self, weights=None):
        """Note where the weights are after the last update, if that is not known."""
        if self.updates and self.updates[-1].stop is None:
            self.updates[-1].stop = (
                self.sketch(self.params) if weights is None else weights
            )

    @quietly
    def end_step(self):
        """End a step of the audit; one that writes the weights by hand counts, too."""
        start = self.now.start
        if (
            start is not None
            and all(u.t != self.t for u in self.updates)
            and not (torch.equal(start, self.sketch(self.params)))
        ):
            self._write_pieces(range(len(self.params)))
            self._close()
        self.settle()


def generator_hash():
    """Return a whole number, another one once torch's generator has drawn."""
    return bit_hashes([torch.get_rng_state()])[0]


def hear(note):
    """Yield patches of torch's losses; note(terms, each) is called in backward.

    A mean of n terms into which backward brings s counts each of them s / n times.
    """
    for name in LOSSES:
        yield mock.patch.object(F, name, _heard(getattr(F, name), note))


def _heard(real, note):
    def loss(input, target, *args, **kwargs):
        made = real(input, target, *args, **kwargs)
        how = kwargs.get("reduction", "mean")
        with suppress(Exception):  # what is odd is not heard
            if (
                made.requires_grad
                and how in ("mean", "sum")
                and not args
                and (kwargs.get("weight") is None)
            ):
                n = _terms(real.__name__, target, kwargs)
                made.register_hook(
                    lambda s: (
                        note(n, float(s) / (n if how == "mean" else 1)) if n else None
                    )
                )
        return made

    return loss


def _terms(name, target, kwargs):
    """Return how many terms a loss is a mean, or a sum, of."""
    if name not in ("cross_entropy", "nll_loss"):
        return target.numel()
    if target.is_floating_point():
        return target.numel() // target.shape[target.dim() > 1]
    return int((target != kwargs.get("ignore_index", -100)).sum())
