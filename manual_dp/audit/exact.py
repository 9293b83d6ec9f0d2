"""Make steps comparable: float64 throughout, and no dropout.

A step that draws random numbers cannot be: `drawn` and `Drawing` tell.
"""

import dataclasses
import random
import sys
import zlib
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from manual_dp.audit.sketch import bit_hashes

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
            "feature_alpha_dropout")


@contextmanager
def exact():
    """Compute in float64 and without dropout."""
    attend, cast = F.scaled_dot_product_attention, torch.autocast.__init__
    wrap, single = DistributedDataParallel.__init__, torch.Tensor.float
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with ExitStack() as stack:
        for home, name, new in [
                *((F, name, lambda x, *_, **__: x) for name in DROPOUTS),
                (F, "scaled_dot_product_attention",
                 lambda *args, dropout_p=0.0, **kwargs: attend(*args[:4], **kwargs)),
                (nn.Module, "float", nn.Module.double),
                (torch.Tensor, "float",  # a scale of one number stays: torch wants it
                 lambda t, **kw: t.double() if t.numel() > 1 else single(t, **kw)),
                (torch.autocast, "__init__", lambda self, *args, **kwargs: cast(
                    self, *args, **{**kwargs, "enabled": False})),
                # its buckets are made for one dtype, once
                (DistributedDataParallel, "__init__", lambda self, module, *args, **kw:
                 wrap(self, module.double(), *args, **kw))]:
            stack.enter_context(mock.patch.object(home, name, new))
        stack.callback(torch.set_default_dtype, before)
        yield


def doubled(x):
    """Return a nest of tensors, or a module, in float64 and without dropout."""
    if isinstance(x, nn.Module):
        for part in x.double().modules():
            if isinstance(part, nn.RNNBase):
                part.dropout = 0.0
        return x
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(x, **{f.name: doubled(getattr(x, f.name))
                                         for f in dataclasses.fields(x) if f.init})
    if not _pytree.tree_is_leaf(x):
        return _pytree.tree_map(doubled, x)
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


class Drawing(TorchFunctionMode):
    """Note hashes of what is drawn with generators of a step's own, in a block."""

    def __init__(self):
        super().__init__()
        self.hashes = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function."""
        made = function(*args, **(kwargs or {}))
        if (kwargs or {}).get("generator") is not None and torch.is_tensor(made):
            self.hashes += bit_hashes([made])
        return made


def drawn(made=()):
    """Return a number that is another one once random numbers were drawn."""
    numpy = sys.modules.get("numpy")
    own = [g.get_state() for g in made if isinstance(g, torch.Generator)]
    states = [bytes(state.numpy()) for state in [torch.get_rng_state(), *own]]
    return zlib.crc32(repr([random.getstate(), numpy and numpy.random.get_state(),
                            states]).encode())
