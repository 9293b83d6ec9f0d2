"""Listen to a rank at work: from one update of its weights to the next.

    Update     what one rank saw: a small thing, that can be sent
    Run        what one rank saw in all
    Recorder   hooks on models, optimizers, clipping, loaders; they change nothing

What this rank's backward brings is heard at each parameter before anything sums it;
what the optimizer uses is read when it is about to step. An error in a hook ends the
listening, and not the training: `problem` says what it was.
"""

import os
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from unittest import mock

import torch
from torch.optim import optimizer as optim
from torch.utils import _pytree

from manual_dp.audit2 import state
from manual_dp.audit2.clipping import Clips
from manual_dp.audit2.rows import Dealing, hashes
from manual_dp.audit2.sketch import SIZE, Sketch, bit_hashes


@dataclass
class Update:
    """What one rank saw up to an update. Hashes and sketches: one a parameter."""

    t: int = 0                                   # which step of the audit or script
    before: list = None                          # hashes at the first forward
    start: object = None                         # sketch of the weights then
    state: dict = field(default_factory=dict)    # of the models then, see state.py
    rng: int = 0                                 # hash of torch's generator then
    drew: bool = False                           # were numbers drawn until the update?
    noisy: bool = False                          # in the first forward?
    drawn: list = field(default_factory=list)    # seeds given; inputs that are no rows
    terms: list = field(default_factory=list)    # (n, each) of torch's losses
    wanders: bool = False                        # do weights move between forwards?
    batch: tuple = (0, None)                     # of the audit: rows, and their hash
    rows: list = field(default_factory=list)     # of each forward: places, or hashes
    numbers: int = 0                             # numbers in the forwards' inputs
    synced: int = 0                              # forwards through a DDP that will sum
    pieces: list = field(default_factory=list)   # sketch of what each backward brought
    left: object = None                          # of what stood in .grad before these
    used: object = None                          # of what the optimizer found
    held: list = field(default_factory=list)     # places of what it holds
    plain: bool = False                          # SGD without momentum and decay
    clips: list = field(default_factory=list)    # (max_norm, norm)
    early: bool = False                          # gradients changed after a clip
    after: dict = field(default_factory=dict)    # place: hash, when it has stepped
    end: dict = field(default_factory=dict)      # optimizers' state, others', then
    settled: list = None                         # hashes at the next update's begin
    stop: object = None                          # sketch of these
    line: str = ""

    @property
    def came(self):
        """Return the sketch of all that came back, None if nothing did."""
        return sum(self.pieces) if self.pieces else None


@dataclass
class Run:
    """What one rank saw in all."""

    names: list                                  # of the parameters
    shapes: list
    wants: list                                  # a gradient?
    updates: list = field(default_factory=list)
    own: set = field(default_factory=set)        # names that DDP was told to ignore
    wrapped: bool = False                        # in DDP, or what is like it
    idle: bool = False                           # forwards, and no update since
    unjudged: str = ""                           # why nothing of it is judged
    blurs: str = ""                              # why one device steps otherwise
    samplers: list = field(default_factory=list)  # what they were told
    reads: list = field(default_factory=list)    # some rows of datasets
    seed: int = None                             # of torch, if nothing was drawn yet
    unheld: list = field(default_factory=list)   # names that no optimizer holds
    silent: list = field(default_factory=list)   # names that no backward reached
    broken: list = field(default_factory=list)   # names of what is not finite
    alias: tuple = None                          # names on one memory


def quietly(hook):
    """Let no error of a hook out: it ends the listening."""
    @wraps(hook)
    def call(self, *args, **kwargs):
        if self.problem:
            return None
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is ours)
            self.problem = f"the audit met {type(error).__name__}: {error}"
            return None
    return call


class Recorder:
    """Record what happens to `models` while the block of `on` runs.

    cast: what is done with inputs before a forward. minibatch: of `rows`, or None.
    closed: called before an update begins, when the one before is complete.
    """

    def __init__(self, models, optimizers=(), others=(), cast=None, closed=None):
        self.models, self.modules = models, [state.unwrapped(m) for m in models]
        self.optimizers, self.others, self.cast = list(optimizers), others, cast
        named = state.named(models, optimizers)
        self.names, self.params = list(named), list(named.values())
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.sketch, self.dealing = Sketch(self.params), Dealing()
        self.sharded = any(hasattr(p, "placements") for p in self.params)
        self.updates, self.now, self.t, self.problem = [], Update(), 0, ""
        self.heard, self.came, self.left, self.clips = set(), {}, {}, Clips(self)
        self.minibatch, self.closed, self.depth = None, closed, 0
        self.through, self.lock = False, threading.RLock()

    @contextmanager
    def on(self):
        """Listen while the block runs."""
        with ExitStack() as self.stack:
            self._hook_up()
            yield self

    @quietly
    def _hook_up(self):
        enter, seed = self.stack.enter_context, torch.manual_seed

        def manual_seed(number):
            self.now.drawn.append(("seed", number))
            return seed(number)
        if hasattr(torch.compiler, "set_stance"):
            enter(torch.compiler.set_stance("force_eager"))
        enter(optim.register_optimizer_step_pre_hook(self._pre_step))
        enter(optim.register_optimizer_step_post_hook(self._post_step))
        enter(mock.patch.object(torch, "manual_seed", manual_seed))
        for patch in [*self.dealing.hooks(), *self.clips.hooks()]:
            enter(patch)
        for model, module in zip(self.models, self.modules):
            enter(module.register_forward_pre_hook(
                self._forward, with_kwargs=True, prepend=True))
            enter(module.register_forward_hook(self._forwarded))
            if model is not module:
                enter(model.register_forward_pre_hook(self._wrapped))
        self._listen()

    # forward

    def _wrapped(self, model, _):
        self.through = bool(getattr(model, "require_backward_grad_sync", True))

    @quietly
    def _forward(self, module, args, kwargs):
        if not torch.is_grad_enabled():
            return None
        if self.cast:
            args, kwargs = self.cast((args, kwargs))
        with self.lock:
            self.dealing.trained()
            self._listen()
            if self.now.before is None:
                self.begin()
            elif self.cast and not self.now.wanders:
                self.now.wanders = self.now.before != self.hashes()
            self._see([t for t in _pytree.tree_leaves((args, kwargs))
                       if torch.is_tensor(t)])
        return args, kwargs

    def _see(self, tensors):
        now = self.now
        rows = (self.minibatch.find if self.minibatch else hashes)(tensors)
        if rows is None and tensors and tensors[0].is_floating_point():
            now.drawn.append(("input", *bit_hashes(tensors[:1])))
        now.rows.append(rows)
        now.numbers += sum(t.numel() for t in tensors[:1])
        now.synced += bool(self.through)
        self.through = False

    @quietly
    def _forwarded(self, *_):
        if torch.is_grad_enabled() and len(self.now.rows) == 1:
            self.now.noisy |= self.now.rng != _generator()

    def begin(self):
        """Note what the first forward finds; this closes the update before."""
        now, hashes = self.now, self.hashes()
        if self.updates and self.updates[-1].settled is None:
            self.settle(hashes)
        if self.closed:
            self.closed()
        now.before, now.start = hashes, self.sketch(self.params)
        now.rng = _generator()
        for i, model in enumerate(self.models):
            now.state.update(state.of_model(model, state.prefix(self.models, i)))

    def hashes(self):
        """Return a hash for each parameter; 0 for one that ranks share out."""
        whole = iter(bit_hashes([p for p in self.params if not _is_part(p)]))
        return [0 if _is_part(p) else next(whole) for p in self.params]

    # backward

    def _listen(self):
        for i, p in enumerate(self.params):
            if i not in self.heard and p.requires_grad:
                self.heard.add(i)
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
        self.now.early |= self.clips.before.pop(i, None) is not None

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
        mine = self._mine(optimizer)
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
        if not mine:
            return
        if self.now.before is None:
            self.begin()
        now = self.now
        used = self.sketch([p.grad if i in mine else None
                            for i, p in enumerate(self.params)])
        now.early |= self.clips.undo(used, mine)
        now.used, now.held = None if self.sharded else used, sorted(mine)
        now.plain = type(optimizer).__name__ == "SGD" and not any(
            group.get("momentum") or group.get("weight_decay")
            for group in optimizer.param_groups)
        now.line, now.drew = _caller(), now.rng != _generator()
        self._write_pieces(now.held)

    def _mine(self, optimizer):
        return {self.index[id(p)] for p in state.params_of(optimizer)
                if id(p) in self.index}

    def _write_pieces(self, held):
        came = {i: self.came[i] for i in held if self.came.get(i)}
        zero = torch.zeros(SIZE, dtype=torch.float64, device="cpu")
        most, places = max(map(len, came.values()), default=0), range(len(self.params))
        self.now.pieces = [torch.stack([
            came[i][m] if i in came and m < len(came[i]) else zero for i in places])
            for m in range(most)]
        left = {i: self.left[i] for i in came if self.left.get(i) is not None}
        self.now.left = torch.stack([left.get(i, zero) for i in places]
                                    ) if left else None

    @quietly
    def _post_step(self, optimizer, *_):
        self.depth = max(0, self.depth - 1)
        mine = sorted(self._mine(optimizer))
        if not self.depth and mine:
            hashes = self.hashes()
            self.now.after = {i: hashes[i] for i in mine}
            self._close()

    def _close(self):
        self.now.t = self.t
        self.updates.append(self.now)
        for i in self.now.held or range(len(self.params)):
            for one in (self.came, self.clips.before, self.clips.after):
                one.pop(i, None)
        self.now = Update()

    def settle(self, hashes=None):
        """Note where the weights, the optimizers and others are after an update."""
        last = self.updates[-1]
        last.settled, last.stop = hashes or self.hashes(), self.sketch(self.params)
        names = {id(p): name for name, p in zip(self.names, self.params)}
        shapes = {(*p.shape,) for p in self.params}
        for i, one in enumerate(self.optimizers):
            at = state.prefix(self.optimizers, i)
            last.end.update(state.of_optimizer(one, at, names))
        for i, one in enumerate(self.others):
            last.end.update(state.of_other(one, state.prefix(self.others, i), shapes))

    @quietly
    def end_step(self):
        """End a step of the audit; one that writes the weights by hand counts, too."""
        mine = [u for u in self.updates if u.t == self.t]
        if self.now.before is not None and not mine and (
                self.hashes() != self.now.before):
            self._write_pieces(range(len(self.params)))
            self.now.drew = self.now.rng != _generator()
            self._close()
            mine = self.updates[-1:]
        if mine:
            self.settle()


def _is_part(p):
    return hasattr(p, "placements")


def _generator():
    return bit_hashes([torch.get_rng_state()])[0]


def _caller():
    """Return the file and line of the user's that is at work."""
    frame, own = sys._getframe(1), os.path.dirname(__file__)
    while frame and ("site-packages" in frame.f_code.co_filename or
                     frame.f_code.co_filename.startswith((own, os.path.dirname(
                         os.__file__)))):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}" \
        if frame else ""
