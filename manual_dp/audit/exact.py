"""Make steps comparable: float64, no dropout, batch norm with fixed statistics.

A step on one device and the same step on ranks are the same numbers only then: float32
rounds elsewhere, a dropout mask belongs to rows, and batch norm takes the statistics of
a rank's own rows. `left_out` says what was changed. A step that draws random numbers of
its own cannot be compared: what `exact` yields tells.
"""

import dataclasses
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit.private import has_parts, is_leaf, map_leaves, private
from manual_dp.audit.randomness import generators

DROPOUTS = [name for name in dir(F) if name.rstrip("123d").endswith("dropout")]


@contextmanager
def exact():
    """Compute so; yield a function that tells of random numbers.

    What it returns is something else once some were drawn.
    """
    own = []  # generators that the program makes

    class Noted(torch.Generator):
        def __init__(self, *args, **kwargs):
            own.append(self)

    attend, cast = F.scaled_dot_product_attention, torch.autocast.__init__
    wrap, single = DistributedDataParallel.__init__, torch.Tensor.float

    def without_dropout(x, *args, **kwargs):
        return x

    def attention(*args, dropout_p=0.0, **kwargs):
        return attend(*args[:4], **kwargs)

    def to_double(tensor, **kwargs):  # a scale of one number stays: torch wants it
        return tensor.double() if tensor.numel() > 1 else single(tensor, **kwargs)

    def no_autocast(self, *args, **kwargs):
        return cast(self, *args, **{**kwargs, "enabled": False})

    def wrap_double(self, module, *args, **kwargs):  # buckets are made once, of a dtype
        return wrap(self, module.double(), *args, **kwargs)

    patches = [(F, name, without_dropout) for name in DROPOUTS] + [
        (torch, "Generator", Noted),
        (F, "scaled_dot_product_attention", attention),
        (nn.Module, "float", nn.Module.double),
        (torch.Tensor, "float", to_double),
        (torch.autocast, "__init__", no_autocast),
        (DistributedDataParallel, "__init__", wrap_double),
    ]
    if kind := private("batch norm"):
        patches.append((kind, "forward", _fixed_statistics(kind.forward)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before)
        for home, name, new in patches:
            stack.enter_context(mock.patch.object(home, name, new))
        yield lambda: [generators(), *(bytes(one.get_state().numpy()) for one in own)]


def _fixed_statistics(forward):
    """Return batch norm that uses its first running statistics, while they move on."""

    def fixed(layer, X):
        if layer.running_mean is None:
            return forward(layer, X)
        if "first_statistics" not in layer.__dict__:
            layer.__dict__["first_statistics"] = (
                layer.running_mean.clone(),
                layer.running_var.clone(),
            )
        if layer.training:
            with torch.no_grad():
                forward(layer, X)
        mean, var = layer.__dict__["first_statistics"]
        return F.batch_norm(
            X, mean, var, layer.weight, layer.bias, False, 0.0, layer.eps
        )

    return fixed


def left_out(modules):
    """Return, in words, what was changed to make the steps comparable."""
    layers = [layer for module in modules for layer in module.modules()]
    words = []
    if has_parts(layers, "batch norm"):
        words.append(
            "batch norm's own statistics: the running ones of the start were used"
        )
    if has_parts(layers, "dropout"):
        words.append("dropout: it was off")
    return words


def why_not_comparable(modules, wrappers):
    """Return why ranks take another step than one device, all the same, or ""."""
    kind = private("batch norm")
    for module in modules:
        for layer in module.modules():
            own = kind and isinstance(layer, kind) and layer.training
            if own and not isinstance(layer, nn.SyncBatchNorm):
                if layer.running_mean is None:
                    return "batch norm takes the statistics of a rank's own rows"
    hooks = [name for wrapper in wrappers for name in wrapper.get("hooks", ())]
    return f"gradients are changed by the hook {hooks[0]}" if hooks else ""


def doubled(x):
    """Return a nest of tensors, or a module, in float64 and without dropout."""
    if isinstance(x, nn.Module):
        for part in x.double().modules():
            if isinstance(part, nn.RNNBase):
                part.dropout = 0.0
        return x
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [f.name for f in dataclasses.fields(x) if f.init]
        new = {name: doubled(getattr(x, name)) for name in fields}
        return dataclasses.replace(x, **new)
    if not is_leaf(x):
        return map_leaves(doubled, x)
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x
