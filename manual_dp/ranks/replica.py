"""What every kind of DDP by hand has in common: `Replica`. The kinds are in ddp.py.

A replica wraps a module in each rank. Its constructor copies rank 0's weights to all
ranks; after each backward a subclass makes the gradients equal. So all ranks take equal
steps, and stay equal, although nobody sends weights again.
"""

from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

PLAIN = torch.Tensor, int, float, str, type(None)  # what a module may return
NOT_ENDED = (
    "a backward has not ended: after an error, set gradients to None and wrap "
    "the module again; in torch.utils.checkpoint, say use_reentrant=False"
)
CHANGED = (
    "a parameter changed during backward, before gradients were averaged: call "
    "optimizer.step() when backward has returned, not in a hook"
)
NOTHING = (
    "the module returned nothing that leads to its parameters, so no backward "
    "could average their gradients: return the loss, or what it is made of; "
    "where nothing is learned, call it under torch.no_grad()"
)
PASSED_BY = (
    "the last backward did not come through what forward returned, so its "
    "gradients were not averaged: let forward return the loss, or what it is "
    "made of, and wrap the module again"
)


class Replica(nn.Module):
    """Wrap `module`: start from rank 0's numbers, average gradients over the ranks.

    When `backward` returns, gradients are the mean over the ranks of each rank's
    gradient: `mean of means`, right for equal shards and a loss that is a mean.
    A backward averages if it comes through what `forward` returned, changed in place
    or not. So two forwards, then two backwards are right; torch's forward prepares the
    next backward only.
    It ignores parameters that do not want a gradient when the module is wrapped, and
    makes a sparse gradient dense.
    find_unused_parameters: allow parameters that the loss does not depend on. If no
    rank used one, its gradient stays as it was; if some rank did, the others count as
    zero. Use torch.utils.checkpoint with use_reentrant=False only.
    Raises ValueError on every rank if the ranks' parameters differ in name, shape,
    dtype or in whether they want a gradient, if the wrappers or their arguments
    differ, or if a part is wrapped already. `backward` raises RuntimeError, with their
    names, if parameters were not used, or if one changed during backward. `forward`
    raises TypeError if it cannot find the tensors in what the module returns, or, in
    training, if none of them leads to a parameter; RuntimeError if the backward before
    it did not come through what `forward` returned, but through a loss that the module
    kept as an attribute, for example.
    """

    def __init__(self, module, find_unused_parameters=False, **options):
        super().__init__()
        _check_same(
            module,
            wrapper=type(self).__name__,
            find_unused_parameters=find_unused_parameters,
            **options,
        )
        self.module = module
        self.names = {
            p: name for name, p in module.named_parameters() if p.requires_grad
        }
        self.find_unused_parameters = find_unused_parameters
        self.sync = self.sync_buffers = True
        self.used = set()  # since gradients were last averaged
        # If this module is wrapped in torch's DDP as well, make that raise instead of
        # averaging twice: it then finds no parameter that it may average.
        self._ddp_params_and_buffers_to_ignore = [*dict(self.named_parameters())]
        _start_from_rank0([*module.parameters(), *module.buffers()])
        self._listen()

    def _listen(self):
        # Autograd gives each backward a number, larger than all before. These are the
        # numbers of the backward that will average, of the last one that reached a
        # parameter, and of the last one through an output made in no_sync.
        self.running, self.reached, self.skipping = None, -1, -1
        # waiting: no backward has come through forward's last output yet. passed_by:
        # while waiting, another backward has reached a parameter.
        self.waiting = self.passed_by = False
        for p in self.names:
            p.register_post_accumulate_grad_hook(self._hook)

    def __setstate__(self, state):
        """Register hooks on the copy, too: deepcopy and pickle leave hooks out."""
        super().__setstate__(state)
        self._listen()

    def forward(self, *args, **kwargs):
        """Call the module; decide here if its backward will average gradients.

        First set buffers, such as running means, to rank 0's, as torch's DDP does.
        """
        if self.sync_buffers:
            _start_from_rank0(self.module.buffers())
        self.sync_buffers = self.sync and torch.is_grad_enabled()
        output = self.module(*args, **kwargs)
        tensors = _tensors(output) if torch.is_grad_enabled() else []
        self._expect(tensors)
        for tensor in tensors:
            tensor.register_hook(self._begin if self.sync_buffers else self._skip)
        return output

    def _expect(self, tensors):
        """Raise if backward cannot come through `tensors`, or if the last did not."""
        if self.sync_buffers and self.passed_by:
            raise RuntimeError(PASSED_BY)
        if self.sync_buffers and self.training and not tensors:
            if any(p.requires_grad for p in self.names):
                raise TypeError(NOTHING)
        if torch.is_grad_enabled():
            self.waiting = self.sync_buffers

    @contextmanager
    def no_sync(self):
        """Do not average the gradients of forwards in this block: add them up."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def _skip(self, grad):
        """Note that backward comes through an output that was made in no_sync."""
        self.skipping = torch._C._current_graph_task_id()

    def _begin(self, grad):
        """Note that backward comes through an output; autograd calls this."""
        number = torch._C._current_graph_task_id()
        self.waiting = False
        # The first output of this backward: let autograd call _finish at its end. Only
        # then all gradients are there, also those that come through other outputs.
        if number != self.running:
            if self.running is not None and self.reached >= self.running:
                raise RuntimeError(NOT_ENDED)
            self.running = number
            self.versions = [p._version for p in self.names]
            Variable._execution_engine.queue_callback(lambda: self._finish(number))
        # create_graph=True: a later backward through this gradient averages, too
        if torch.is_grad_enabled():
            grad = grad if grad.requires_grad else grad.detach().requires_grad_()
            grad.register_hook(self._begin)
        return grad

    def _hook(self, p):
        """Note that backward has added p's gradient; autograd calls this."""
        number = torch._C._current_graph_task_id()
        self.reached = max(self.reached, number)
        if p.grad is None and self.find_unused_parameters:
            return  # a torch.autograd.Function returned None as p's gradient
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()
        # in no_sync, too: the next backward that averages averages this gradient, too
        self.used.add(p)
        if number == self.running:
            self.ready(p)
        elif self.waiting and number != self.skipping:
            self.passed_by = True

    def _finish(self, number):
        """Average the gradients; autograd calls this when all of backward is done."""
        if self.reached > number:  # another backward ran inside this one
            raise RuntimeError(NOT_ENDED)
        if self.reached < number:  # it was autograd.grad, which leaves p.grad alone
            self.running = None
            return
        if self.versions != [p._version for p in self.names]:
            raise RuntimeError(CHANGED)
        unused = [p for p in self.names if p not in self.used]
        if unused and not self.find_unused_parameters:
            names = ", ".join(self.names[p] for p in unused)
            raise RuntimeError(
                f"backward did not reach {names}; if that is meant, "
                "pass find_unused_parameters=True"
            )
        kept = {p: None if p.grad is None else p.grad.clone() for p in unused}
        self.average(list(self.names))
        if self.find_unused_parameters:
            # After the average: all ranks must send in one order, and another rank may
            # have started its first bucket in the middle of backward.
            for p in self._used_nowhere():
                p.grad = kept[p]
        self.used, self.running, self.passed_by = set(), None, False

    def _used_nowhere(self):
        params = list(self.names)
        flags = torch.tensor(
            [p in self.used for p in params], dtype=torch.int64, device=params[0].device
        )
        dist.all_reduce(flags)
        return [p for p, flag in zip(params, flags.tolist()) if not flag]

    def ready(self, p):
        """Do what can be done as soon as p's gradient is there; by default nothing."""

    def average(self, params):
        """Set the gradients of `params`, in one order on all ranks, to their mean."""
        raise NotImplementedError


@torch.no_grad()
def _start_from_rank0(tensors):
    """Overwrite tensors by rank 0's, packed into one message for each dtype."""
    groups = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in groups.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.broadcast(flat, 0)
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts):
            # data: autograd does not notice the change. It would refuse the backward of
            # an earlier forward that needs this buffer.
            tensor.data.copy_(part.view(tensor.shape))


def _tensors(output):
    """Return the tensors in a module's output that a backward can come through."""
    if is_dataclass(output):
        output = {field.name: getattr(output, field.name) for field in fields(output)}
    parts = tree_leaves(output)
    for part in parts:
        if isinstance(part, nn.Parameter) or not isinstance(part, PLAIN):
            raise TypeError(
                f"the module returned a {type(part).__name__}: return new "
                "tensors, alone or in lists, tuples, dicts or a dataclass"
            )
    found = [part for part in parts if isinstance(part, torch.Tensor) and part.grad_fn]
    # A view that is changed in place gets a new node without hooks. Backward then comes
    # through the node of the tensor that it is a view of.
    bases = [tensor._base for tensor in found if tensor._is_view()]
    return found + [base for base in bases if base.grad_fn]


def _check_same(module, **options):
    if any(hasattr(part, "no_sync") for part in module.modules()):
        raise ValueError(
            "the module or a part of it is wrapped already: wrap what is "
            "inside, its .module"
        )
    mine = [f"{name}={value}" for name, value in options.items()]
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        gradient = "" if t.requires_grad else " without gradient"
        mine.append(f"{name} {tuple(t.shape)} {t.dtype}{gradient}")
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        for one, first in zip_longest(theirs, everyone[0], fillvalue="nothing more"):
            if one != first:
                raise ValueError(f"rank {rank} has {one}, rank 0 has {first}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("the module has no parameter that wants a gradient")
