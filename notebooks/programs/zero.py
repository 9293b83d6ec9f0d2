"""ZeRO, stage 1, by hand: each rank keeps the optimizer's state of its own shard only.

    ShardedOptimizer   reduce-scatter gradients, step on one shard, all-gather weights
    state_bytes        what an optimizer keeps between steps, in bytes
    zero_bytes         what a rank keeps, by formula: stages 0 to 3

All weights form one flat tensor, cut into a chunk for each rank. A rank needs the mean
gradient of its own chunk only, so a reduce-scatter is enough. An all-gather then brings
it the other ranks' new weights. Together they move the bytes of one all-reduce. Adam's
two moments are kept once over all ranks, no longer once in each of them.

Source: Rajbhandari et al. 2020, ZeRO.
"""

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.ranks.collectives import allgather, reduce_scatter


class ShardedOptimizer:
    """Take the steps of an optimizer whose state is shared out between the ranks.

    make(tensors) returns the optimizer of a list with one flat tensor; it must treat
    every number alike, as SGD and Adam do. All ranks must begin with equal weights, of
    one dtype. They become views of one flat tensor, so move the model before, not
    after. Call it after backward on a module without DDP: it takes the mean itself.
    """

    def __init__(self, params, make):
        self.params = list(params)
        world_size = dist.get_world_size()
        self.flat = self._flatten(self.params, world_size)
        for part, p in zip(self._parts(self.flat), self.params):
            p.data = part  # no second copy: who changes the flat tensor changes these
        self.chunks = list(self.flat.chunk(world_size))
        self.shard = nn.Parameter(self.chunks[dist.get_rank()])  # this one, too
        self.optimizer = make([self.shard])

    @torch.no_grad()
    def step(self):
        """Move the weights by the mean of all ranks' gradients; a missing one is 0.

        It uses the gradients up: afterwards all of them are None.
        """
        _check_views(self.params, self.flat)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        sums = list(self._flatten([p.grad for p in self.params], world_size)
                    .chunk(world_size))
        self.zero_grad()  # their numbers are in `sums`
        reduce_scatter(sums)
        self.shard.grad = sums[rank] / world_size
        del sums  # before the optimizer asks for memory
        self.optimizer.step()
        self.shard.grad = None
        allgather(self.chunks)
        # so that backward through the old weights raises, as after any step
        torch.autograd.graph.increment_version(self.params)

    def zero_grad(self):
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def _flatten(self, tensors, world_size):
        """Copy tensors of the parameters' shapes into a flat one; None stands for 0."""
        length = sum(p.numel() for p in self.params)
        length += -length % world_size  # chunks of one length
        flat = self.params[0].new_zeros(length)
        for part, tensor in zip(self._parts(flat), tensors):
            if tensor is not None:
                part.copy_(tensor)
        return flat

    def _parts(self, flat):
        """Return views of `flat`, one of each parameter's shape."""
        sizes = [p.numel() for p in self.params]
        return [part.view_as(p) for part, p in
                zip(flat[:sum(sizes)].split(sizes), self.params)]


def state_bytes(optimizer):
    """Return the bytes of all tensors with more than one number that it keeps."""
    return sum(t.nbytes for state in optimizer.state.values() for t in state.values()
               if isinstance(t, torch.Tensor) and t.numel() > 1)


def zero_bytes(params, world_size, stage):
    """Return the bytes of `params` weights on a rank: Adam, mixed precision.

    2 bytes for a weight and 2 for its gradient, both in 16 bits; 12 for Adam: the
    weight in 32 bits and two moments. Stage 0 keeps all of them on each rank. Stage 1
    shards Adam's 12, stage 2 the gradients, too, stage 3 the weights as well.
    """
    weights, gradients, adam = 2 * params, 2 * params, 12 * params
    if stage >= 1:
        adam /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        weights /= world_size
    return weights + gradients + adam


def _check_views(params, flat):
    for i, p in enumerate(params):
        if p.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr():
            raise ValueError(f"parameter {i} is no longer a view of the flat tensor: "
                             "move the model first, then make the optimizer")
