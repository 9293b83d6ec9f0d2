"""Find what a script trains: nothing is declared.

`Known` takes in each model that is wrapped in DDP, each optimizer that is made, and
each module that the script calls itself (not one inside of another). Called with
gradients, and with parameters that an optimizer holds, it is a model. Called without,
or with buffers alone, it is *silent*: a teacher, a frozen critic, a moving average.
"""

import weakref
from contextlib import suppress
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from manual_dp.audit.private import summed_by
from manual_dp.audit.stands import caller
from manual_dp.audit.state import params_of, unwrapped


class Known:
    """Hold what a script has made and called, as long as it lives.

    made: models and optimizers that are known from the start. changed: called when a
    model turns up that nobody listens to.
    """

    def __init__(self, made=(), changed=lambda: None):
        self.models = [weakref.ref(m) for m in made if isinstance(m, nn.Module)]
        self.optimizers = [weakref.ref(o) for o in made if isinstance(o, Optimizer)]
        self.given = {id(one) for one in made}
        self.made_at = weakref.WeakKeyDictionary()  # {optimizer: the script's line}
        self.training = weakref.WeakSet()  # optimizers, also while theirs is frozen
        self.summed = set()  # ids of what wrappers took in and sum
        for model in self.models:
            self.summed |= summed_by(model())
        self.silent, self.listened, self.depth = [], set(), 0
        self.changed = changed

    def __call__(self):
        """Return the models that are trained, and the optimizers: two lists."""
        made = _alive(self.optimizers)
        for one in made:
            if any(p.requires_grad for p in params_of(one)):
                self.training.add(one)
        optimizers = [one for one in made if one in self.training]
        held = {id(p) for one in optimizers for p in params_of(one)}
        models, seen = [], set()
        # wrappers first: what they hold is not a model a second time
        for model in sorted(_alive(self.models), key=lambda m: m is unwrapped(m)):
            own = {id(p) for p in model.parameters()}
            wrapped = model is not unwrapped(model)
            trained = not held or own & held or id(model) in self.given
            if own - seen and (trained or wrapped):
                models.append(model)
                seen |= own
        return models, optimizers

    def silent_modules(self):
        """Return the modules that are called and not trained, and still live."""
        return _alive(self.silent)

    def hooks(self):
        """Yield patches that take in what the script makes and calls."""
        wrap, make = DistributedDataParallel.__init__, Optimizer.__init__
        call = nn.Module.__call__

        def wrapping(model, *args, **kwargs):
            wrap(model, *args, **kwargs)
            _add(self.models, model)
            self.summed |= summed_by(model)

        def making(optimizer, *args, **kwargs):
            make(optimizer, *args, **kwargs)
            _add(self.optimizers, optimizer)
            self.made_at[optimizer] = caller()

        def calling(module, *args, **kwargs):
            if self.depth:
                return call(module, *args, **kwargs)
            self.depth += 1
            try:
                with suppress(Exception):
                    self._called(module)
                return call(module, *args, **kwargs)
            finally:
                self.depth -= 1

        yield mock.patch.object(DistributedDataParallel, "__init__", wrapping)
        yield mock.patch.object(Optimizer, "__init__", making)
        yield mock.patch.object(nn.Module, "__call__", calling)

    def _called(self, module):
        parameters = [*module.parameters()]
        new = [p for p in parameters if id(p) not in self.listened]
        if not new:
            if not parameters and [*module.buffers()]:
                _add(self.silent, module)  # a loss that keeps an average, perhaps
            return
        if torch.is_grad_enabled() and any(p.requires_grad for p in new):
            _add(self.models, module)
            self.summed |= summed_by(module)
            self.changed()
        else:
            _add(self.silent, module)


def _alive(references):
    return [one for one in (ref() for ref in references) if one is not None]


def _add(references, one):
    if all(ref() is not one for ref in references):
        references.append(weakref.ref(one))
