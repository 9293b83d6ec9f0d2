"""Buckets: gradients packed into a few flat tensors, so that few messages are sent.

    make_buckets   sort parameters into buckets of about `bucket_cap_mb` MiB
    Bucket         the flat tensor of some gradients, and its all-reduce

Gradients become ready from the last layer to the first, so buckets are filled in the
reverse order of the parameters: the first bucket is full while backward still works
on the layers before it. Li et al. 2020, section 3.2.
"""

import torch
import torch.distributed as dist


def make_buckets(params, bucket_cap_mb):
    """Sort `params`, the last one first, into buckets, and return these in a list.

    bucket_cap_mb: MiB, > 0. A bucket closes once it holds so many; the first one at
    1 MiB if that is less, so that sending starts early. All of a bucket has one dtype
    and is on one device.
    """
    buckets, group, size = [], [], 0
    for p in reversed(params):
        if group and (p.dtype, p.device) != (group[0].dtype, group[0].device):
            buckets.append(Bucket(group))
            group, size = [], 0
        group.append(p)
        size += p.numel() * p.element_size()
        cap = bucket_cap_mb if buckets else min(bucket_cap_mb, 1)
        if size >= cap * 2**20:
            buckets.append(Bucket(group))
            group, size = [], 0
    if group:
        buckets.append(Bucket(group))
    return buckets


class Bucket:
    """Hold the gradients of `params` in one flat tensor; average it over the ranks."""

    def __init__(self, params):
        self.params = params
        self.flat = torch.zeros(
            sum(p.numel() for p in params),
            dtype=params[0].dtype,
            device=params[0].device,
        )
        flats = self.flat.split([p.numel() for p in params])
        self.views = {p: flat.view(p.shape) for p, flat in zip(params, flats)}
        self.empty()

    def __reduce__(self):
        # deepcopy and pickle call Bucket(params) for the copy: its views then lie in
        # its own flat tensor
        return Bucket, (self.params,)

    def empty(self):
        """Mark every gradient as missing, for the next backward."""
        self.missing = set(self.params)
        self.work = None

    @torch.no_grad()
    def put(self, p):
        """Write p's gradient, divided by the world size, into the bucket.

        Writes zeros if p has no gradient. If it has one, `p.grad` is then a view of the
        bucket: the mean arrives in it, and the next step writes over it. Clone a
        gradient that you keep.
        """
        view = self.views[p]
        if p.grad is None:
            view.zero_()
        else:
            torch.mul(p.grad, 1 / dist.get_world_size(), out=view)
            p.grad = view
        self.missing.discard(p)

    def start(self):
        """Start to sum the flat tensor over ranks, and return at once."""
        self.work = dist.all_reduce(self.flat, async_op=True)

    def wait(self):
        """Wait until the mean is there."""
        self.work.wait()
