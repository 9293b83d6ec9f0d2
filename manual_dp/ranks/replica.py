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
    torch.utils.checkpoint: with use_reentrant=False only; the other form runs a
    backward inside backward, whose end is taken for the end of all.
    Raises ValueError on every rank if the ranks' parameters differ in name, shape,
    dtype or in whether they want a gradient; RuntimeError from `backward`, naming
    them, if parameters were not used.
    """

    def __init__(self, module, find_unused_parameters=False):
        super().__init__()
        _check_same(module)
        self.module = module
        self.names = {p: name for name, p in module.named_parameters()
                      if p.requires_grad}
        self.find_unused_parameters = find_unused_parameters
        self.sync = self.sync_buffers = True
        self.armed = self.running = False
        self.used = set()  # since gradients were last averaged
        _start_from_rank0([*module.parameters(), *module.buffers()])
        self._listen()

    def _listen(self):
        for p in self.names:
            p.register_post_accumulate_grad_hook(self._hook)

    def __setstate__(self, state):
        """Become a copy that listens too: deepcopy and pickle leave hooks out."""
        super().__setstate__(state)
        self._listen()

    def forward(self, *args, **kwargs):
        """Call the module. This, not backward, decides whether gradients are averaged.

        Buffers, such as running means, are first set to rank 0's, as in torch's DDP.
        """
        if self.running:
            raise RuntimeError("the last backward ended half-way: gradients may "
                               "differ between ranks")
        if self.sync_buffers:
            _start_from_rank0(self.module.buffers())
        self.sync_buffers = self.sync and torch.is_grad_enabled()
        self.armed = self.armed or self.sync_buffers
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
        self.used.add(p)  # in no_sync too: what it left there is averaged later
        if not self.armed:
            return
        if not self.running:  # the first: ask to be called when backward is done
            Variable._execution_engine.queue_callback(self._finish)
            self.running = True
        self.ready(p)

    def _finish(self):
        """Average the gradients; autograd calls this when all of backward is done."""
        unused = [p for p in self.names if p not in self.used]
        if unused and not self.find_unused_parameters:
            names = ", ".join(self.names[p] for p in unused)
            raise RuntimeError(f"backward did not reach {names}; if that is meant, "
                               "pass find_unused_parameters=True")
        kept = {p: None if p.grad is None else p.grad.clone() for p in unused}
        self.average(list(self.names))
        if self.find_unused_parameters:
            # Not before: some rank may have started its first bucket long ago.
            for p in self._used_nowhere():
                p.grad = kept[p]
        self.used, self.armed, self.running = set(), False, False

    def _used_nowhere(self):
        params = list(self.names)
        flags = torch.tensor([p in self.used for p in params], dtype=torch.int64,
                             device=params[0].device)
        dist.all_reduce(flags)
        return [p for p, flag in zip(params, flags.tolist()) if not flag]

    def ready(self, p):
        """Do what can be done as soon as p's gradient is there."""

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
            tensor.copy_(part.view(tensor.shape))


def _check_same(module):
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
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("the module has no parameter that wants a gradient")


def _words(name, shape, dtype, wanted):
    return f"{name} {shape} {dtype}" + ("" if wanted else " without gradient")
