"""DDP by hand, in three steps with one interface: all compute the same gradients.

    NaiveDDP    after backward, one all-reduce for every parameter
    BucketDDP   after backward, one all-reduce for every bucket
    DDP         one for every bucket, started while backward is still running

    model = DDP(module)             in each rank; starts from rank 0's parameters
    loss(model(X), y).backward()    gradients are the mean over ranks from here on
    optimizer.step()                the same step on every rank

torch's `DistributedDataParallel` is the third, in C++ (Li et al. 2020).
"""

import torch.distributed as dist

from manual_dp.checks import check_bucket_cap
from manual_dp.ranks.bucket import make_buckets
from manual_dp.ranks.replica import Replica


class NaiveDDP(Replica):
    """Average gradients after backward, a parameter at a time.

    Arguments and errors are `Replica`'s.
    """

    def average(self, params):
        """Set the gradients of `params` to their mean over ranks."""
        for p in params:
            grad = p.new_zeros(p.shape)
            if p.grad is not None:
                grad += p.grad
            dist.all_reduce(grad)
            p.grad = grad / dist.get_world_size()


class BucketDDP(Replica):
    """Average gradients after backward, a bucket at a time.

    bucket_cap_mb: a bucket closes once it holds so many MiB. `p.grad` is a view of its
    bucket, and the next step writes over it: clone a gradient that you keep. (torch's
    DDP copies gradients, unless told gradient_as_bucket_view=True.) Other arguments and
    errors are `Replica`'s.
    """

    def __init__(self, module, bucket_cap_mb=25, find_unused_parameters=False):
        check_bucket_cap(bucket_cap_mb)
        super().__init__(module, find_unused_parameters, bucket_cap_mb=bucket_cap_mb)
        self.buckets = make_buckets(list(self.names), bucket_cap_mb)

    def average(self, params):
        """Set the gradients of `params` to their mean over ranks."""
        for bucket in self.buckets:
            self._fill(bucket)
            bucket.start()
            bucket.wait()
        self._empty(params)

    def _fill(self, bucket):
        """Put in the gradients that are missing, and zeros where there is none."""
        for p in list(bucket.missing):
            bucket.put(p)

    def _empty(self, params):
        """Make each gradient a view of its bucket; mark it as missing for next time."""
        for bucket in self.buckets:
            for p in params:
                view = bucket.views.get(p, p.grad)
                if p.grad is not None and p.grad is not view:
                    raise RuntimeError(
                        f"the gradient of {self.names[p]} was replaced "
                        "in backward, by a second wrapper or a hook"
                    )
                p.grad = view  # another rank may have had a gradient for p
            bucket.empty()


class DDP(BucketDDP):
    """Start each bucket's all-reduce as soon as it is full.

    Buckets start in the same order on all ranks, even if gradients become ready in
    another, since ranks must start the same all-reduce. Arguments and errors are
    `BucketDDP`'s.
    """

    def ready(self, p):
        """Put p's gradient into its bucket; start the buckets that are full."""
        for bucket in self.buckets:
            if p in bucket.views:
                bucket.put(p)
        self._start_full()

    def average(self, params):
        """Wait until all buckets hold the mean."""
        for bucket in self.buckets:
            self._fill(bucket)  # parameters that backward did not reach
        self._start_full()
        for bucket in self.buckets:
            bucket.wait()
        self._empty(params)

    def _start_full(self):
        """Start buckets in their order, up to the first that is not full."""
        for bucket in self.buckets:
            if bucket.missing:
                break
            if not bucket.work:
                bucket.start()
