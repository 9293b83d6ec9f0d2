"""Batch norm over the rows of all ranks, by hand: what DDP leaves to each rank alone.

    SyncNorm        a batch norm with the mean and variance of the whole minibatch
    synchronise     put one in the place of every batch norm of a network
    sum_over_ranks  an all-reduce that autograd can follow

torch has it as `nn.SyncBatchNorm`, on GPUs (Zhang et al. 2018). Cost: two small
all-reduces a layer forward and two backward; every rank must call the same layers.
"""

import torch
import torch.distributed as dist
from torch import nn


class SyncNorm(nn.BatchNorm2d):
    """Normalise by the mean and the variance of all ranks' rows."""

    def forward(self, X):
        """Map (n, channels, h, w) to the same shape; in eval mode as `BatchNorm2d`."""
        if not self.training:
            return super().forward(X)
        count = sum_over_ranks(X.new_tensor(X[:, 0].numel()))
        if count <= 1:  # its variance is 0 / 0
            raise ValueError(f"X has {count:g} values a channel over all ranks; need 2")
        mean = sum_over_ranks(X.sum((0, 2, 3))) / count
        X = X - mean[:, None, None]
        var = sum_over_ranks((X * X).sum((0, 2, 3))) / count
        self._keep(mean.detach(), (var * count / (count - 1)).detach())
        scale = self.weight / torch.sqrt(var + self.eps)
        return X * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _keep(self, mean, var):
        """Move the running statistics, which eval mode uses, towards these."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(var.to(self.running_var), self.momentum)


def synchronise(module):
    """Turn every `BatchNorm2d` in `module` into a `SyncNorm` of the same numbers."""
    for layer in module.modules():
        if type(layer) is nn.BatchNorm2d:
            layer.__class__ = SyncNorm  # the parameters and buffers stay the same
    return module


def sum_over_ranks(tensor):
    """Return the sum over ranks; its gradient is the sum of all ranks' gradients."""
    return _Sum.apply(tensor)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return _Sum.forward(ctx, grad)
