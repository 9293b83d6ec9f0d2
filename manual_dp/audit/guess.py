"""Let a script be watched that does not say what it wants watched.

    watch_what_is_trained   what it wraps in DDP; else the model that it calls

It is watched from the moment that it wraps a model in DDP; of several that it wraps
before the first forward, all are, with their optimizers. If it wraps none, as where it
sends gradients by hand, the first model is watched that is called to be trained, from
that call on: then others that an optimizer of it holds, too.
"""

import copy
import gc
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from manual_dp.audit import script
from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.setup import ids_held


def watch_what_is_trained():
    """Begin to listen, for as long as this process lasts."""
    guess = Guess()
    wrap, make, duplicate, call, send = (
        DistributedDataParallel.__init__, Optimizer.__init__, copy.deepcopy,
        nn.Module.__call__, dist.broadcast)

    def wrap_and_watch(model, *args, **kwargs):
        wrap(model, *args, **kwargs)
        guess.wrapped.append(model)
        guess.watch_wrapped()

    def make_and_watch(optimizer, *args, **kwargs):
        make(optimizer, *args, **kwargs)
        guess.optimizers.append(weakref.ref(optimizer))
        if len(guess.wrapped) > 1:
            guess.watch_wrapped()

    def copy_and_keep(one, *args, **kwargs):
        made = duplicate(one, *args, **kwargs)
        if isinstance(made, nn.Module):
            guess.copies.append(weakref.ref(made))
        return made

    def call_watched(module, *args, **kwargs):
        if torch.is_grad_enabled() and dist.is_initialized():
            guess.watch_called(module)
        return call(module, *args, **kwargs)

    def send_and_know(*args, **kwargs):
        guess.sent = True
        return send(*args, **kwargs)

    copy.deepcopy, dist.broadcast = copy_and_keep, send_and_know
    DistributedDataParallel.__init__ = wrap_and_watch
    Optimizer.__init__ = make_and_watch
    nn.Module.__call__ = call_watched


class Guess:
    """What is known of a script's models and optimizers; what is watched of these."""

    def __init__(self):
        self.wrapped, self.optimizers, self.copies = [], [], []
        self.own = None  # the `Followed` that was begun here
        self.sent = False  # was there a broadcast since?

    def alive(self):
        """Return the optimizers that there are."""
        return [one for ref in self.optimizers if (one := ref()) is not None]

    def watch_wrapped(self):
        """Watch all that is wrapped, unless the script said watch, or trains."""
        begun = self.own and (self.own.run.steps or self.own.watch.note.all_rows)
        if script.FOLLOWED not in ([], [self.own]) or begun and not (
                self.own.run.bare and self._fresh()):
            return
        held = {id(p) for model in self.wrapped for p in model.parameters()}
        theirs = [one for one in self.alive()
                  if len(self.wrapped) > 1 and held & ids_held([one])]
        self._watch(self.wrapped, theirs)

    def watch_called(self, module):
        """Watch the model on the way to be called, if nothing is watched so far."""
        if self.wrapped or script.FOLLOWED and not self._moved(module):
            return
        held = {id(p) for p in module.parameters() if p.requires_grad}
        if theirs := [one for one in self.alive() if held & ids_held([one])]:
            self._watch(_with_others(module, theirs), theirs)
            self.own.run.bare = True

    def _watch(self, models, optimizers):
        self.own = script.watch(*models, *optimizers)
        self.sent = False
        self.own.watch.guessed, self.own.copies = True, self.copies

    def _fresh(self):
        """Return whether nothing was trained since it is watched."""
        watch = self.own.watch
        return not (self.own.run.steps or watch.came or watch.stepped)

    def _moved(self, module):
        """Return whether the weights were sent after a call, before the first backward.

        Then it was called to be tried, before it had rank 0's weights.
        """
        if script.FOLLOWED != [self.own] or not self.own.run.bare or not self._fresh():
            return False
        watch = self.own.watch
        return module in watch.modules and bool(watch.note.all_rows) and (
            self.sent or watch.note.before != bit_hashes(watch.params))


def _with_others(module, optimizers):
    """Return the module, or that around it, which has all that they hold; or several.

    Around: it may have called one of its parts. In the order of their parameters: so
    they are the same on all ranks.
    """
    held = [id(p) for one in optimizers for group in one.param_groups
            for p in group["params"]]
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    of = {id(one): {id(p) for p in one.parameters()} for one in modules}
    around = [one for one in modules if of[id(one)] >= {*held, *of[id(module)]}
              and any(part is module for part in one.modules())]
    if around:
        return [min(around, key=lambda one: sum(1 for _ in one.modules()))]
    inside = {id(part) for one in modules for part in one.children()}
    others = [one for one in modules if id(one) not in inside
              and of[id(one)] & {*held} and not of[id(one)] & of[id(module)]]
    return [module, *sorted(others, key=lambda one: min(
        place for place, p in enumerate(held) if p in of[id(one)]))]
