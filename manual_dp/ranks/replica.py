"""What every kind of DDP by hand has in common: `Replica`.

A replica wraps a module in each rank. Its constructor makes the ranks equal; after
each backward a subclass makes the gradients equal. So equal steps follow, and the
replicas stay equal, although nobody sends weights again. See ddp.py.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable


class Replica(nn.Module):
    """Wrap `module`: start from rank 0's numbers, average gradients over the ranks.

    When `backward` returns, gradients are the mean over the ranks of each rank's
    gradient: `mean of means`, right for equal shards and a loss that is a mean.
    Parameters that do not want a gradient when the module is wrapped are left alone.
    find_unused_parameters: let a parameter take no part in the loss. Where no rank
    used it, its gradient stays as it was; elsewhere, not using it counts as zero.
    Raises ValueError on every rank if the ranks' parameters differ in name, shape or
    dtype; RuntimeError from `backward`, naming them, if parameters were not used.
    """

    def __init__(self, module, find_unused_parameters=False):
        super().__init__()
        _check_same(module)
        self.module = module
        self.names = {p: name for name, p in module.named_parameters()
                      if p.requires_grad}
        self.find_unused_parameters = find_unused_parameters
        self.sync = self.sync_buffers = True
        self.armed, self.used = False, set()
        for tensor in [*module.parameters(), *module.buffers()]:
            _broadcast(tensor)
        for p in self.names:
            p.register_post_accumulate_grad_hook(self._hook)

    def forward(self, *args, **kwargs):
        """Call the module. This, not backward, decides whether gradients are averaged.

        Buffers, such as running means, are first set to rank 0's, as in torch's DDP.
        """
        if self.used:
            raise RuntimeError("the last backward ended half-way: gradients may "
                               "differ between ranks")
        if self.sync_buffers:
            for buffer in self.module.buffers():
                _broadcast(buffer)
        if self.sync and torch.is_grad_enabled():
            self.armed = True
        self.sync_buffers = self.sync and torch.is_grad_enabled()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        """Let gradients add up on each rank alone, for forwards in this block."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def _hook(self, p):
        """Note that backward has added p's gradient; autograd calls this."""
        if not self.armed:
            return
        if not self.used:  # the first: ask to be called when backward is done
            Variable._execution_engine.queue_callback(self._finish)
        self.used.add(p)
        self.ready(p)

    def _finish(self):
        used, self.used, self.armed = self.used, set(), False
        unused = [p for p in self.names if p not in used]
        if unused and not self.find_unused_parameters:
            names = ", ".join(self.names[p] for p in unused)
            raise RuntimeError(f"backward did not reach {names}; if that is meant, "
                               "pass find_unused_parameters=True")
        self.average(self._used_anywhere(used) if self.find_unused_parameters
                     else list(self.names))

    def _used_anywhere(self, used):
        params = list(self.names)
        flags = torch.tensor([p in used for p in params], dtype=torch.int64,
                             device=params[0].device)
        dist.all_reduce(flags)
        return [p for p, flag in zip(params, flags.tolist()) if flag]

    def ready(self, p):
        """Do what can be done as soon as p's gradient is there."""

    def average(self, params):
        """Set the gradients of `params`, in one order on all ranks, to their mean."""
        raise NotImplementedError


@torch.no_grad()
def _broadcast(tensor):
    flat = tensor.contiguous()  # gloo would send the wrong numbers of a strided one
    dist.broadcast(flat, 0)
    if flat is not tensor:
        tensor.copy_(flat)


def _check_same(module):
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("the module has no parameter that wants a gradient")
    mine = [(name, tuple(t.shape), str(t.dtype), t.requires_grad)
            for name, t in [*module.named_parameters(), *module.named_buffers()]]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        if len(theirs) != len(everyone[0]):
            raise ValueError(f"rank {rank} has {len(theirs)} parameters and buffers, "
                             f"rank 0 has {len(everyone[0])}")
        for one, first in zip(theirs, everyone[0]):
            if one != first:
                raise ValueError(f"rank {rank} has {_words(*one)}, "
                                 f"rank 0 has {_words(*first)}")


def _words(name, shape, dtype, wanted):
    return f"{name} {shape} {dtype}" + ("" if wanted else " without gradient")
