"""Listen to a rank at work: from one update of its weights to the next.

An update begins with the first forward (or backward) after the optimizers have stepped,
and ends when the next one begins: six optimizers that step one after the other are one
update, a critic's and a generator's are two. What this rank's backward brings is heard
at each parameter before anything sums it; what the optimizer uses is read when it is
about to step. An error in here ends the listening, and not the training: `problem`.
"""

import weakref
from contextlib import suppress
from functools import wraps
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim import optimizer as optim

from manual_dp.audit import state
from manual_dp.audit.notes import Update
from manual_dp.audit.private import (
    NAMES,
    backward_number,
    hear_first,
    leaves,
    private,
    sends_buffers,
    way,
    wrapper_facts,
)
from manual_dp.audit.randomness import Draws
from manual_dp.audit.rows import Dealing, hashes
from manual_dp.audit.sketch import Sketch, stacked
from manual_dp.audit.stands import caller


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
    """Record what happens to what is known, while it listens.

    known: returns models and optimizers (discover.py); what is new there begins the
    record anew. cast: in `audit_step`, what is done with the inputs of a forward.
    ended: called when an update is complete, and at a forward after a problem, when
    nothing more will be heard.
    """

    def __init__(self, known, cast=None, ended=None):
        self.known, self.cast, self.ended = known, cast, ended
        self.problem, self.wanders, self.grouped = "", "", False
        self.t, self.minibatch = 0, None  # of `audit_step`: its step, the rows of it
        self.dealing, self.draws = Dealing(self._loads), Draws()
        self.heard, self.unheard = set(), set()  # names of losses
        self.gathered = {}  # {place: name} of a gather between forward and backward
        self.taken = weakref.WeakKeyDictionary()  # steps of each optimizer in all
        self.hooks, self.nested = [], 0
        self.called = False  # was there a forward?
        self._know(*known())

    def __reduce__(self):
        """Let a copy of the model, or its file, have hooks that hear nothing."""
        return _Deaf, ()

    def _know(self, models, optimizers):
        """Begin the record, of all that these hold."""
        self.models, self.modules = models, [state.unwrapped(one) for one in models]
        self.optimizers = list(optimizers)
        named = state.named(models, optimizers)
        self.names, self.params = list(named), list(named.values())
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.inside = len(state.named(models))  # the others stand beside the models
        self.known.listened = {id(p) for p in self.params[: self.inside]}
        self.sketch = Sketch(self.params)
        self.updates, self.now, self.fresh = [], Update(), not self.called
        # by the place of a parameter: [(backward, sketch)], sketch, factor
        self.came, self.left, self.clipped = {}, {}, {}
        self.terms = {}  # by the backward that they are of
        # of each backward of this update, how many forwards there were before it
        self.backwards, self.listens = {}, set()
        self.on_the_way = {}  # like `gathered`, since the last forward
        self.callers, self.steps, self.stepping = [], {}, 0
        self.through = {}  # {module: way} of a wrapper whose forward has begun
        self.began = {}  # {module: (way, line)} of its last forward
        self.applied = set()  # backwards of which the optimizers apply something

    def discover(self):
        """Take in what is new; return whether there was something."""
        models, optimizers = self.known()
        ids = {id(p) for p in state.named(models, optimizers).values()}
        if ids == set(self.index) and len(state.named(models)) == self.inside:
            return False
        for hook in self.hooks:
            hook.remove()
        self._know(models, optimizers)
        self._to_modules()
        self._to_parameters()
        return True

    @quietly
    def listen(self, stack):
        """Listen until this ExitStack is closed."""
        enter = stack.enter_context
        enter(torch.compiler.set_stance("force_eager"))
        enter(optim.register_optimizer_step_pre_hook(self._before_step))
        enter(optim.register_optimizer_step_post_hook(self._after_step))
        if clip := private("clip"):

            def clip_and_note(params, most, norm, *args, **kwargs):
                params = [params] if torch.is_tensor(params) else list(params)
                self._clip(params, most, norm)
                return clip(params, most, norm, *args, **kwargs)

            enter(mock.patch.object(*NAMES["clip"][:2], clip_and_note))
        for patch in [*self.dealing.hooks(), *self._gathers()]:
            enter(patch)
        stack.callback(lambda: [hook.remove() for hook in self.hooks])
        self._to_modules()
        self._to_parameters()

    # forward

    def _to_modules(self):
        self.hooks = []
        for model, module in zip(self.models, self.modules):
            before, after = (
                module.register_forward_pre_hook,
                module.register_forward_hook,
            )
            self.hooks.append(before(self._forward, with_kwargs=True, prepend=True))
            self.hooks.append(after(self._forwarded))
            if model is not module:
                self.hooks.append(model.register_forward_pre_hook(self._wrapped))

    def _gathers(self):
        """Yield patches of torch's collectives that bring other ranks' values."""
        for name in ("all_gather", "all_gather_into_tensor"):
            yield mock.patch.object(dist, name, self._heard(getattr(dist, name)))

    def _heard(self, gather):
        @wraps(gather)
        def call(*args, **kwargs):
            self._note_gather(gather.__name__)
            return gather(*args, **kwargs)

        return call

    @quietly
    def _note_gather(self, name):
        forwards = len(self.now.rows)
        done = max(self.backwards.values(), default=0)
        if torch.is_grad_enabled() and forwards > done:  # a backward is still to come
            self.on_the_way[caller()] = name

    def _give_up(self):
        """Say that no update will be complete; in a forward, where hooks may go."""
        self.grouped |= dist.is_initialized()
        if self.ended:
            self.ended()

    @quietly
    def _wrapped(self, model, _):
        if torch.is_grad_enabled():
            self._enter()  # before a compiled module is on its way
            self.through[state.unwrapped(model)] = way(model)
        elif sends_buffers(model):
            self.now.tests.append(caller())

    def _forward(self, module, args, kwargs):
        if self.problem:
            return self._give_up()
        return self._note_forward(module, args, kwargs)

    @quietly
    def _note_forward(self, module, args, kwargs):
        if not torch.is_grad_enabled():
            return None
        if self.cast:
            args, kwargs = self.cast((args, kwargs))
        self._to_parameters()
        self._enter()
        if self.cast and not torch.equal(self.now.start, self.sketch(self.params)):
            self.wanders = "weights move between the forwards of a step"
        self._note_draws()
        self.called = True
        tensors = [t for t in leaves((args, kwargs)) if torch.is_tensor(t)]
        find = self.minibatch.find if self.minibatch else hashes
        self.now.rows.append(find(tensors))
        line, past = caller(), "past" if self._in_ddp(module) else ""
        self.now.lines.setdefault("forward", line)
        self.callers.append(module)
        self.began[module] = self.through.pop(module, past), line
        return args, kwargs

    def _in_ddp(self, module):
        return any(
            one is module and model is not module and way(model)
            for model, one in zip(self.models, self.modules)
        )

    @quietly
    def _forwarded(self, *_):
        if torch.is_grad_enabled():
            drew = self.draws.look()
            if self.now.rng is None and "torch" in drew:
                self.now.rng, _ = drew["torch"]  # ranks may draw more or less

    def _note_draws(self):
        """Note the generators that drew while the script's own loop was at work."""
        for name, drew in self.draws.look().items():
            self.now.outside.setdefault(name, drew)

    @quietly
    def _loads(self, begins, first):
        """Note what a loader draws apart, from where it begins to where it ends.

        What it draws for its first rows may be their order, as for all ranks.
        """
        if begins:
            self._note_draws()
            return
        for name, drew in self.draws.look().items():
            if not first:
                self.now.outside.setdefault(f"{name} in a loader", drew)

    def _enter(self):
        """Begin an update, if the one before has stepped or there was none."""
        if self.now.held:
            self._close()
        if self.now.start is None:
            self._begin()

    def _begin(self, in_backward=False):
        weights = self.sketch(self.params)
        self.settle(weights)
        if not in_backward:  # there nothing may be sent, or listened to anew
            if self.ended and self.updates:
                self.ended()
            if self.discover():
                weights = self.sketch(self.params)
        self.grouped |= dist.is_initialized()
        self.now.start = weights
        for at, model in state.numbered(self.models):
            self.now.state |= state.of_model(model, at)

    # backward

    def _to_parameters(self):
        for i, p in enumerate(self.params):
            if i not in self.listens and p.requires_grad:
                self.listens.add(i)
                self.hooks.append(
                    p.register_hook(
                        lambda grad, p=p: self._hear(self.index.get(id(p)), grad)
                    )
                )
                hear_first(p)

    @quietly
    @torch.no_grad()
    def _hear(self, i, grad):
        if i is None:  # a parameter that was replaced
            return
        number = backward_number()
        if self.now.held and number not in self.backwards and not self.nested:
            self._close()  # a new backward, and no forward before it
            self._begin(in_backward=True)
        if number not in self.backwards:
            self.backwards[number] = len(self.now.rows)
            self.gathered |= self.on_the_way
            self.on_the_way = {}
        self.dealing.trained()
        held = self.params[i].grad
        empty = held is None or not float(held.norm())
        if empty and i in self.clipped:  # what was clipped is not applied either
            self.now.clips = []
            self.clipped.pop(i)
        if i not in self.came:
            self.left[i] = None if empty else self.sketch.row(held)
        if i not in self.came or empty:
            self.came[i] = []  # what was cleared is not applied
        self.came[i].append((number, self.sketch.row(grad)))

    def note_loss(self, name, *term):
        """Note a term (n, each) of a loss; without one, that it is not heard."""
        if term:
            self.heard.add(name)
            self.terms.setdefault(backward_number(), []).append(term)
        else:
            self.unheard.add(name)

    @quietly
    def _clip(self, params, most, norm):
        mine, most, norm = self._places(params), float(most), float(norm)
        if not mine:
            return
        self.now.lines["clip"] = caller()
        own = stacked([self._own_gradient(i) for i in mine])
        found = self.sketch([self.params[i].grad for i in mine])
        apart = float((found - own).norm())  # sums in another order are rounded
        is_own = not self.clipped and apart <= 1e-5 * float(found.norm())
        self.now.clips.append((most, norm, is_own))
        for i in mine:
            self.clipped[i] = min(1.0, most / (norm + 1e-6)) * self.clipped.get(i, 1.0)

    def _own_gradient(self, i):
        rows = [row for _, row in self.came.get(i, ())]
        return sum(rows) if rows else None

    # the update

    @quietly
    def _before_step(self, optimizer, args, kwargs):
        self.nested += 1
        if self.nested > 1:  # an optimizer inside of another is a part of it
            return
        self._note_draws()
        mine = self._places(state.params_of(optimizer))
        if set(mine) & set(self.now.held):
            self._close()  # it has stepped in this update
        if self.now.start is None:
            self._begin()
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._take(optimizer)

    @quietly
    def _after_step(self, optimizer, *_):
        self.nested = max(0, self.nested - 1)
        if self.nested:
            return
        if self.stepping != id(optimizer):  # a closure had forward and backward in it
            self._take(optimizer)
        self.stepping = 0
        if self.now.held:
            at_work = [one for one in self.optimizers if id(one) in self.steps]
            for at, one in state.numbered(at_work):
                self.now.state |= state.of_options(one, at)
            self.now.stepped = self.sketch(self.params)
        self.draws.look()

    def _take(self, optimizer):
        """Read the gradients that an optimizer is about to use."""
        self.stepping = id(optimizer)
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
        mine, now = self._places(state.params_of(optimizer)), self.now
        if not mine:
            return
        grads = [None] * len(self.params)
        for i in mine:
            grads[i] = self.params[i].grad
        used = self.sketch(grads)
        for i in self.clipped.keys() & mine:
            now.factors[i] = self.clipped[i] or 1.0
            used[i] /= now.factors[i]
        now.used = used if now.used is None else now.used + used
        now.held = sorted({*now.held, *mine})
        now.lines["step"] = caller()
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.taken[optimizer] = self.taken.get(optimizer, 0) + 1
        made = self.known.made_at.get(optimizer, "")
        now.key = now.key or (made, self.names[mine[0]], self.taken[optimizer])
        numbers = {number for i in now.held for number, _ in self.came.get(i, ())}
        self.applied = numbers & self.backwards.keys()
        terms = [self.terms.get(number, []) for number in numbers]
        now.terms = sum(terms, []) or sum(self.terms.values(), [])
        if self.unheard:  # what is heard is not the whole loss
            now.terms = []
        self._write_pieces(now.held)

    def _places(self, params):
        return sorted({self.index[id(p)] for p in params if id(p) in self.index})

    def _write_pieces(self, held):
        came = [[] for _ in self.params]
        for i in held:
            came[i] = [row for _, row in self.came.get(i, ())]
        self.now.pieces = [
            stacked([rows[m] if m < len(rows) else None for rows in came])
            for m in range(max(map(len, came), default=0))
        ]
        left = [self.left[i] if rows else None for i, rows in enumerate(came)]
        self.now.left = stacked(left) if any(x is not None for x in left) else None

    def _close(self):
        """Put the update that is over into the record, and begin another."""
        now = self.now
        now.t = self.t if self.cast else len(self.updates)
        held = {id(self.params[i]) for i in now.held}

        def has_stepped(module):
            return any(id(p) in held for p in module.parameters())

        for module, (how, line) in self.began.items():
            if has_stepped(module) and now.way in ("", "on"):
                now.way = how
                # a module that DDP holds, or one that was called in an update before
                if how == "past" or module not in self.callers:
                    now.lines["forward"] = line
        if not self.cast:
            self._forget_forwards()
            # the rows that count are those of a model that has stepped
            main = next(filter(has_stepped, self.callers), None)
            if main is not None:
                self._keep([j for j, m in enumerate(self.callers) if m is main])
        self.callers = []
        self.updates.append(now)
        for i in now.held or range(len(self.params)):
            self.came.pop(i, None)
            self.clipped.pop(i, None)
        live = {number for rows in self.came.values() for number, _ in rows}
        self.terms = {n: terms for n, terms in self.terms.items() if n in live}
        self.now = Update()
        self.backwards.clear()
        self.applied = set()
        self.on_the_way = {}

    def _forget_forwards(self):
        """Leave out forwards whose gradient was cleared, as in a step that is skipped.

        A forward belongs to the first backward after it.
        """
        kept, begin = [], 0
        for number, end in self.backwards.items():
            if number in self.applied:
                kept += range(begin, end)
            else:
                self.now.lines["cleared"] = self.now.lines.get("forward", "")
            begin = max(begin, end)
        if kept:
            self._keep(kept)

    def _keep(self, forwards):
        """Keep these forwards of the update, and forget the others."""
        for kept in (self.now.rows, self.callers):
            kept[:] = [kept[j] for j in forwards]

    def settle(self, weights=None):
        """Note where the weights are after the last update, if that is not known."""
        if self.updates and self.updates[-1].stop is None:
            self.updates[-1].stop = (
                self.sketch(self.params) if weights is None else weights
            )

    @quietly
    def end_step(self):
        """End a step of `audit_step`; one that writes weights by hand counts, too."""
        start = self.now.start
        if self.now.held:
            self._close()
        elif (
            start is not None
            and all(u.t != self.t for u in self.updates)
            and not torch.equal(start, self.sketch(self.params))
        ):
            self._write_pieces(range(len(self.params)))
            for at, one in state.numbered(self.optimizers):
                self.now.state |= state.of_options(one, at)
            self._close()
        self.settle()

    def end(self):
        """End the record of a script: its last update is complete."""
        with suppress(Exception):
            if self.now.held:
                self._close()
            self.settle()

    def wrappers(self):
        """Return what each wrapper of torch's says of itself."""
        return [wrapper_facts(model) for model in self.models]


class _Deaf:
    """Stand where a copy of a model has its recorder."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None
