"""Let a script that is run once more compute so that two runs can be compared.

    doubled   while a block runs; what is drawn in each of its steps is noted

All is in float64, without dropout, batch norm takes its running statistics (but where
one device stands for layers that take those of all ranks), and in the steps fixed
numbers are drawn. Then a right script takes the same steps on ranks and on one device,
to 13 digits, if it gives the one device the rows of all ranks. If it does not, as where
a rank has so many rows whatever the world size, loaders can be made to.
"""

import random
import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import script
from manual_dp.audit.batch import doubles
from manual_dp.audit.exact import (
    SHORT,
    Doubles,
    devices,
    exact,
    generators,
    random_states,
    set_random_states,
)
from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.fixed import DRAWN, fixed


@contextmanager
def doubled(times, fixes=False, by_rows=False):
    """Compute in float64 while the block runs; each loader gives `times` the rows.

    fixes: give fixed numbers where a generator of the script's own draws, too.
    by_rows: let batch norm take the statistics of its rows, as it does.
    """
    drawn = Drawn(fixes)
    drawn.seed()  # a script that seeds nothing begins with the same weights
    made, give = DataLoader.__init__, _BaseDataLoaderIter.__next__

    def make(loader, dataset, batch_size=1, *args, **kwargs):
        if batch_size and kwargs.get("batch_sampler") is None:
            batch_size *= times
        made(loader, dataset, batch_size, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(exact())
        stack.callback(optim.register_optimizer_step_pre_hook(
            lambda *_: drawn.at_update()).remove)
        norm = F.batch_norm if by_rows else drawn.by_running(F.batch_norm)
        for hook in (mock.patch.object(F, "batch_norm", norm),
                     mock.patch.object(nn.SyncBatchNorm, "forward",
                                       nn.BatchNorm1d.forward),
                     mock.patch.object(torch, "from_numpy", _double(torch.from_numpy)),
                     mock.patch.object(DataLoader, "__init__", make),
                     mock.patch.object(_BaseDataLoaderIter, "__next__",
                                       drawn.begins(drawn.excused(_double(give)))),
                     *drawn.hooks(), Heard(drawn)):
            stack.enter_context(hook)
        yield


def _double(call):
    """Return the call, for floats in float64."""
    return lambda *args: doubles(call(*args))


PLACES = {"randint", "randperm", "multinomial"}  # which may be of rows


class Heard(Doubles):
    """Give float64, and fixed numbers in steps; hear what other generators draw."""

    def __init__(self, drawn):
        super().__init__(SHORT)
        self.drawn = drawn

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function, in float64."""
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        own = kwargs.get("generator") is not None
        mine = not own or self.drawn.fixes and name not in PLACES
        draws = name in DRAWN and self.drawn.begun and mine
        states = random_states(devices()) if draws else ()
        made = super().__torch_function__(function, types, args, kwargs)
        if draws and (instead := fixed(name, made, args, kwargs)) is not None:
            set_random_states(devices(), states)
            return instead
        if own and torch.is_tensor(made):
            self.drawn.own = hash((self.drawn.own, *bit_hashes([made])))
        return made


class Drawn:
    """Note in a watched script's steps whether numbers were drawn, and in what state.

    A seed draws nothing, and in steps it is one for all ranks; what samplers and
    loaders draw is seen in the rows.
    """

    def __init__(self, fixes=False):
        self.state, self.drew, self.own, self.begun = None, False, 0, False
        self.fixes, self.norms = fixes, 0
        self.asked = self.given = ()  # for seeds before the steps; that gave numbers
        numpy = getattr(sys.modules.get("numpy"), "random", None)
        self.seeds = [(home, name, getattr(home, name)) for home, name in (
            (torch, "manual_seed"), (random, "seed"), (numpy, "seed")) if home]

    def seed(self):
        """Seed all generators alike."""
        for *_, seed in self.seeds:  # unheard by a watch
            seed(0)

    def hooks(self):
        """Yield the hooks, which must come before those of a watch."""
        yield mock.patch.object(script.Followed, "_begin", self._at_begin(
            script.Followed._begin))
        yield mock.patch.object(script.Followed, "_forward", self.begins(
            script.Followed._forward))
        for home, name in ((_BaseDataLoaderIter, "__init__"),
                           (DistributedSampler, "__iter__")):
            yield mock.patch.object(home, name, self.excused(getattr(home, name)))
        for home, name, seed in self.seeds:
            yield mock.patch.object(home, name, self.excused(self._seeded(seed)))

    def _seeded(self, call):
        """Return the call, which seeds all ranks alike once one is watched."""
        def seeded(*seed):
            if script.FOLLOWED and not self.begun:
                self._give()
                self.asked, self.drew = seed, False
            return call(*(0,) if script.FOLLOWED else seed)
        return seeded

    def _at_begin(self, begin):
        def begun(followed):
            begin(followed)
            if not followed.run.steps:  # what made the model is no part of a step
                self.seed()
                self.state, self.drew, self.own = generators(), False, 0
        return begun

    def _give(self):
        self.given += self.asked if self.drew else ()

    def begins(self, call):
        """Return the call, from which on fixed numbers are drawn."""
        def first(*args, **kwargs):
            if script.FOLLOWED and not self.begun:
                self._look()
                self._give()
                self.begun = True
            return call(*args, **kwargs)
        return first

    def excused(self, call):
        """Return the call, of which no draw is noted."""
        def excused(*args, **kwargs):
            self._look()
            own, made = self.own, call(*args, **kwargs)
            self.state, self.own = generators(), own
            return made
        return excused

    def by_running(self, norm):
        """Return torch's batch_norm, by the running statistics; they do not move on."""
        def by_running(input, mean, var, weight=None, bias=None, training=False,
                       momentum=0.1, eps=1e-5):
            self.norms += training
            mean = input.new_zeros(input.shape[1]) if mean is None else mean
            var = input.new_ones(input.shape[1]) if var is None else var
            return norm(input, mean, var, weight, bias, False, momentum, eps)
        return by_running

    def _look(self):
        self.drew |= self.state != (now := generators())
        self.state = now

    def at_update(self):
        """Note in each step that is watched whether there was a draw before it."""
        self._look()
        for followed in script.FOLLOWED:
            followed.watch.note.random += ((self.drew and self.state, self.own),)
            followed.watch.note.norms += self.norms
            followed.watch.note.given = self.given
        self.drew, self.own, self.norms = False, 0, 0
