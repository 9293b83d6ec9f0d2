"""Hear torch's losses in a script: what does each of their terms count in the end?

    Losses   of a `Watch`; a part of its hooks

A loss that is a mean of n terms, and that backward finds s times in what it begins
with, counts each of them s / n times. Where these losses add up to what backward began
with, there is nothing else in it: so the loss of a script need not be known.
"""

import inspect
import math
from contextlib import contextmanager, suppress
from functools import wraps
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.audit.fingerprint import row_hashes
from manual_dp.audit.plain import caller, comparable
from manual_dp.audit.records import Part

NAMES = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
         "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
         "kl_div", "soft_margin_loss", "gaussian_nll_loss", "poisson_nll_loss")
MOST = 1 << 16  # numbers of a loss's targets
STRANGE = AttributeError, RuntimeError  # tensors without numbers

# what keeps rows apart, as autograd calls it without "Backward"
APART = {"View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze",
         "Unsqueeze", "Slice", "Select", "Index", "Clone", "ToCopy", "Alias", "Split",
         "SplitWithSizes", "Unbind", "Cat", "Stack", "Sigmoid", "Tanh", "Relu", "Exp",
         "Log", "Clamp", "Neg", "Softmax", "LogSoftmax", "Pow", "Sqrt", "_DDPSink"}
BY_NUMBERS = {"Add", "Sub", "Mul", "Div"}  # too, where the other is not of the model
SAME_ROWS = BY_NUMBERS | {"View", "UnsafeView", "ToCopy"}


class Losses:
    """Note in each step of a watch what the terms of its losses count."""

    def __init__(self, watch):
        self.watch, self.depth, self.came, self.reached = watch, 0, [], False
        self.within = False  # another loss: under a mode, torch calls each once more
        self.heads = []  # where the graphs of the losses heard since then end

    def hooks(self):
        """Yield the hooks on torch's losses, and on backward."""
        for name in NAMES:
            yield mock.patch.object(F, name, self._heard(getattr(F, name)))
        real = torch.autograd.backward

        @wraps(real)
        def backward(tensors, grad_tensors=None, *args, **kwargs):
            with self._judged(tensors, grad_tensors):
                return real(tensors, grad_tensors, *args, **kwargs)
        yield mock.patch.object(torch.autograd, "backward", backward)

    def hear(self):
        """Be told that a gradient came to a parameter; outside of backward, by whom?"""
        self.reached = True
        self.watch.note.unheard |= not self.depth

    def _heard(self, real):
        signature = inspect.signature(real)

        @wraps(real)
        def take(*args, **kwargs):
            within, self.within = self.within, True
            try:
                made = real(*args, **kwargs)
            finally:
                self.within = within
            if (not torch.compiler.is_compiling() and not self.depth and not within
                    and not self.watch.quiet and made.requires_grad):
                said = signature.bind(*args, **kwargs)
                said.apply_defaults()
                with suppress(*STRANGE):  # as in torch.func: then it is not heard
                    self._keep(made, real.__name__, said.arguments)
            return made
        take.__prepare_scriptable__ = lambda: real  # TorchScript compiles its source
        return take

    def _keep(self, made, name, said):
        """Ask the loss, as it was made, to say what comes back to it."""
        y_hat, how, terms = said["input"], said["reduction"], _terms(name, said)
        value = made.detach().double().clone()
        of_row = 1 if "mean" in how or not y_hat.dim() else terms / max(1, len(y_hat))
        part = Part(f"{name} in {caller()}", terms, None, of_row, _mixes(y_hat.grad_fn),
                    len(self.watch.note.all_rows), *_aims(said))

        def come(grad):
            with suppress(*STRANGE):
                self.came.append((float((grad * value).sum()),
                                  _counted(part, how, grad, value)))
        made.register_hook(come)
        self.heads.append(made.grad_fn)

    @contextmanager
    def _judged(self, roots, weights):
        """Note the terms that this backward is about, or that they are not known."""
        if self.depth or self.watch.quiet:
            yield
            return
        begun, close, divided = math.nan, 0, set()
        with suppress(*STRANGE):
            begun, close, divided = _begun(roots, weights, self.heads)
        self.came, self.reached, self.depth = [], False, 1
        note, self.heads = self.watch.note, []
        cleared, note.cleared = note.cleared, False
        try:
            yield
        finally:
            self.depth = 0
            note.terms = [] if note.cleared else note.terms  # of what is not applied
            note.cleared |= cleared
        if self.reached:
            rest = abs(begun - sum(value for value, _ in self.came))
            note.terms += [part for _, part in self.came]
            note.unheard |= not self.came or not rest <= close * sum(
                abs(value) for value, _ in self.came)
            note.divided |= divided


def _begun(roots, weights, heads):
    """Return what a backward begins with, how exact it is, and its divisors."""
    roots = list(roots) if isinstance(roots, (list, tuple)) else [roots]
    weights = list(weights) if isinstance(weights, (list, tuple)) else [
        weights] * len(roots)
    begun = sum(float((root.detach() * (1 if w is None else w)).sum())
                for root, w in zip(roots, weights))
    close = 8 * max(torch.finfo(root.dtype).eps for root in roots)
    return begun, close, {by for root in roots for by in _divisors(root, heads)}


def _counted(part, how, grad, value):
    """Return the `Part` with what came back to each of its terms."""
    if how == "none":
        counted = grad[(grad != 0) & (value != 0)].double()
        alike = len(counted) and counted.max() - counted.min() <= 1e-5 * abs(
            counted[0])
        of_row = part.of_row * len(counted) / max(1, part.terms)
        return part._replace(terms=len(counted), of_row=of_row,
                             each=float(counted.mean()) if alike else None)
    each = float(grad) / (1 if how == "sum" else part.terms or 1)
    return part._replace(each=each if part.terms else None)


def _terms(name, said):
    """Return of how many terms a loss is a mean, or a sum."""
    y_hat, y = said["input"], said["target"]
    if name in ("cross_entropy", "nll_loss"):
        if y.is_floating_point():
            return y.numel() // max(1, y.shape[min(1, y.dim() - 1)])
        y = y[y != said["ignore_index"]]
        weight = said["weight"]
        return len(y) if weight is None else float(weight[y].sum())
    if said["reduction"] == "batchmean":
        return len(y_hat)
    return torch.broadcast_shapes(y_hat.shape, y.shape).numel()


def _aims(said):
    """Return what a loss is to reach: its rows' hashes, an output's shape; real?"""
    with suppress(*STRANGE):
        y = comparable(said["target"])
        real = y.is_floating_point()
        if "ignore_index" in said and not real:
            y = y[y != said["ignore_index"]]
        if y.dim() and y.numel() <= MOST:
            return row_hashes(y), tuple(said["input"].shape[1:]), real and bool(
                (y != y.round()).any())
    return ()


def _mixes(node):
    """Return whether rows may meet between the network's last layer and the loss."""
    if node is None or _is_layer(node):
        return False
    name, before = _name(node), _before(node)
    apart = name in APART or name in BY_NUMBERS and (
        len(before) < 2 or all(map(_is_scaled_layer, before)))  # of an adapter
    return not apart or any(map(_mixes, before))


def _name(node):
    return node.name().rstrip("0123456789").removesuffix("Backward")


def _before(node):
    """Return what comes in; not a parameter that each number is multiplied by."""
    before = [one for one, _ in node.next_functions if one is not None]
    return [one for one in before if not _is_parameter(one)] if (
        _name(node) in BY_NUMBERS) else before


def _is_parameter(node, deep=4):
    """Return whether it is a parameter, perhaps cast, or its exponential."""
    for _ in range(deep):
        if node is None or node.name().endswith("AccumulateGrad"):
            break
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node is not None and node.name().endswith("AccumulateGrad")


def _is_layer(node):
    """Return whether it takes numbers together with its parameters, frozen or not."""
    weights = getattr(node, "_saved_mat2", getattr(node, "_saved_weight", None))
    frozen = weights is not None and isinstance(
        weights if weights._base is None else weights._base, nn.Parameter)
    return frozen or _name(node) not in BY_NUMBERS and any(
        _is_parameter(one) for one, _ in node.next_functions)


def _is_scaled_layer(node):
    """Return whether it is a layer, as it is or by a number."""
    while _name(node) in SAME_ROWS and len(_before(node)) == 1 and not _is_layer(node):
        [node] = _before(node)
    return _is_layer(node)


def _divisors(root, heads):
    """Return the numbers that the losses were divided by on the way to `root`."""
    found, node = set(), root.grad_fn
    while node is not None and node not in heads:
        if "DivBackward" in node.name() and torch.is_tensor(
                by := node._saved_other) and by.numel() == 1:
            found.add(float(by))
        node = next((after for after, _ in node.next_functions if after), None)
    return found if node in heads else set()
