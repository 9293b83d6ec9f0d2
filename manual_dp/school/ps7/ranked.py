"""The programs of exercise 7.3: one step on ranks, right or with a bug.

    RIGHT, BUGS   the functions; the first line of each says what it does

Each is `step(X, y, params, lr)`, called on every rank with the whole minibatch and
with parameters of the rank's own. Every bug calls its collectives on all ranks.
"""

import torch
import torch.distributed as dist

from manual_dp.school.ps7.given import clear, cut, descend, loss, sum_over_ranks


def sums(X, y, params, lr):
    """Sum over ranks, and divide by all rows."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    sum_over_ranks(params)
    descend(params, lr / len(X))


def one_bucket(X, y, params, lr):
    """Send all gradients in one tensor."""
    rank, k = dist.get_rank(), dist.get_world_size()
    grads = torch.autograd.grad(loss(params, X[rank::k], y[rank::k]).sum(), params)
    bucket = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(bucket)
    for p, part in zip(params, bucket.split([p.numel() for p in params])):
        p.data.sub_(lr / len(X) * part.view_as(p))


def scaled_mean(X, y, params, lr):
    """Take the mean over ranks of losses that are scaled for it."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    (loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum() * k / len(y)).backward()
    sum_over_ranks(params)
    for p in params:
        p.grad /= k
    descend(params, lr)


def gathered(X, y, params, lr):
    """Gather all ranks' gradients, and add them up on each."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    for p in params:
        parts = [torch.empty_like(p.grad) for _ in range(k)]
        dist.all_gather(parts, p.grad)
        p.grad = sum(parts)
    descend(params, lr / len(X))


def through_rank_0(X, y, params, lr):
    """Sum on rank 0, which sends the sum to all."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    for p in params:
        dist.reduce(p.grad, 0)
        dist.broadcast(p.grad, 0)
    descend(params, lr / len(X))


def in_microbatches(X, y, params, lr):
    """Go back through one row at a time, and send once."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own_X, own_y = cut(X, k)[rank], cut(y, k)[rank]
    for p in params:
        p.grad = torch.zeros_like(p)
    for i in range(len(own_y)):
        loss(params, own_X[i:i + 1], own_y[i:i + 1]).sum().backward()
    sum_over_ranks(params)
    descend(params, lr / len(X))


def not_synchronised(X, y, params, lr):
    """Step with the rank's own gradient."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own = max(1, len(cut(X, k)[rank]))
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    dist.barrier()
    descend(params, lr / own)


def sum_for_mean(X, y, params, lr):
    """Add up the ranks' means, and never divide by the ranks."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own = max(1, len(cut(X, k)[rank]))
    clear(params)
    (loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum() / own).backward()
    sum_over_ranks(params)
    descend(params, lr)


def mean_of_means(X, y, params, lr):
    """Average the ranks' means, whatever their rows."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own = max(1, len(cut(X, k)[rank]))
    clear(params)
    (loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum() / own).backward()
    sum_over_ranks(params)
    descend(params, lr / k)


def rank_0_for_all(X, y, params, lr):
    """Step with own gradients, then copy rank 0's weights to all."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own = max(1, len(cut(X, k)[rank]))
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    descend(params, lr / own)
    for p in params:
        dist.broadcast(p.data, 0)


def others_behind(X, y, params, lr):
    """Step on rank 0 alone; the others get its weights before the next step."""
    rank, k = dist.get_rank(), dist.get_world_size()
    for p in params:
        dist.broadcast(p.data, 0)
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    sum_over_ranks(params)
    descend(params, lr / len(X) if rank == 0 else 0)


def never_cleared(X, y, params, lr):
    """Keep the gradients of the steps before."""
    rank, k = dist.get_rank(), dist.get_world_size()
    old = [p.grad for p in params]
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    sum_over_ranks(params)
    for p, grad in zip(params, old):
        p.grad = p.grad if grad is None else p.grad + grad
    descend(params, lr / len(X))


def bias_stays_local(X, y, params, lr):
    """Send all gradients but the last parameter's."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    sum_over_ranks(params[:-1])
    params[-1].grad *= k
    descend(params, lr / len(X))


def last_rows_dropped(X, y, params, lr):
    """Leave out the rows that do not divide evenly."""
    rank, k = dist.get_rank(), dist.get_world_size()
    rows = max(1, len(X) // k * k)
    clear(params)
    loss(params, cut(X[:rows], k)[rank], cut(y[:rows], k)[rank]).sum().backward()
    sum_over_ranks(params)
    descend(params, lr / rows)


def last_rank_twice(X, y, params, lr):
    """Count the last rank's rows twice when there are three ranks or more."""
    rank, k = dist.get_rank(), dist.get_world_size()
    times = 2 if rank == k - 1 and k > 2 else 1
    clear(params)
    (times * loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum()).backward()
    sum_over_ranks(params)
    descend(params, lr / len(X))


def apart_by_a_little(X, y, params, lr):
    """Let each rank divide by a number that is a little its own."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    sum_over_ranks(params)
    descend(params, lr / (len(X) + 1e-5 * rank))


def three_digits(X, y, params, lr):
    """Round the gradients to three digits before they are sent."""
    rank, k = dist.get_rank(), dist.get_world_size()
    clear(params)
    loss(params, cut(X, k)[rank], cut(y, k)[rank]).sum().backward()
    for p in params:
        p.grad = (p.grad * 1e3).round() / 1e3
    sum_over_ranks(params)
    descend(params, lr / len(X))


def mean_of_nothing(X, y, params, lr):
    """Divide by the rank's rows, of which there may be none."""
    rank, k = dist.get_rank(), dist.get_world_size()
    own = cut(y, k)[rank]
    clear(params)
    loss(params, cut(X, k)[rank], own).sum().backward()
    for p in params:
        p.grad = p.grad / len(own) * (len(own) / len(y))
    sum_over_ranks(params)
    descend(params, lr)


RIGHT = [sums, one_bucket, scaled_mean, gathered, through_rank_0, in_microbatches]
BUGS = [not_synchronised, sum_for_mean, mean_of_means, rank_0_for_all, others_behind,
        never_cleared, bias_stays_local, last_rows_dropped, last_rank_twice,
        apart_by_a_little, three_digits, mean_of_nothing]
