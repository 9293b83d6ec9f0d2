"""The planted bugs of exercise 7.2, in trainings such as those of trainers.py.

    BUGS   the functions; the first line of each says what it does
"""

import torch

from manual_dp.school.ps7.given import (
    backward,
    clear,
    copy_params,
    cut,
    descend,
    loss,
    sum_gradients,
)


def mean_of_means(params, batches, k):
    """Average the shards' means, with momentum."""
    replicas = [copy_params(params) for _ in range(k)]
    velocity = [[torch.zeros_like(p) for p in params] for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            (loss(own, X_shard, y_shard).sum() / max(1, len(y_shard)) / k).backward()
        sum_gradients(replicas)
        for own, speeds in zip(replicas, velocity):
            for p, v in zip(own, speeds):
                v.mul_(0.9).add_(p.grad)
                p.data.sub_(0.3 * v)
    return replicas


def rate_for_k(params, batches, k):
    """Multiply the rate by k, though the minibatch is the same."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.1 * k / len(X))
    return replicas


def clipped_before_the_sum(params, batches, k):
    """Clip each shard's gradient before the sum, not the sum."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            loss(own, X_shard, y_shard).sum().backward()
            norm = torch.cat([p.grad.flatten() for p in own]).norm() / len(X)
            for p in own:
                p.grad /= max(1.0, 10 * norm.item())
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def adam_before_the_sum(params, batches, k):
    """Let each rank's Adam take its own step, then average the weights."""
    replicas = [copy_params(params) for _ in range(k)]
    squares = [[torch.zeros_like(p) for p in params] for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard, seconds in zip(
                replicas, cut(X, k), cut(y, k), squares):
            clear(own)
            (loss(own, X_shard, y_shard).sum() / max(1, len(y_shard))).backward()
            for p, s in zip(own, seconds):
                s.lerp_(p.grad ** 2, 0.1)
                p.data.sub_(0.01 * p.grad / (s.sqrt() + 1e-4))
        for same in zip(*replicas):
            mean = sum(p.data for p in same) / k
            for p in same:
                p.data.copy_(mean)
    return replicas


def every_second_sum(params, batches, k):
    """Synchronise the replicas in every second step alone."""
    replicas = [copy_params(params) for _ in range(k)]
    for t, (X, y) in enumerate(batches):
        backward(replicas, X, y)
        if t % 2 == 0:
            sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def late_by_a_step(params, batches, k):
    """Step with the sum of the step before, except the first time."""
    replicas, late = [copy_params(params) for _ in range(k)], None
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            (loss(own, X_shard, y_shard).sum() / len(X)).backward()
        sum_gradients(replicas)
        now = [p.grad.clone() for p in replicas[0]]
        used = now if late is None or k == 1 else late
        late = now
        for own in replicas:
            for p, grad in zip(own, used):
                p.grad = grad.clone()
            descend(own, 0.5)
    return replicas


def others_behind(params, batches, k):
    """Step on the first replica; the others get its weights before the next step."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        for own in replicas[1:]:
            for p, q in zip(own, replicas[0]):
                p.data.copy_(q.data)
        backward(replicas, X, y)
        sum_gradients(replicas)
        descend(replicas[0], 0.5 / len(X))
    return replicas


def rows_of_its_own_mean(params, batches, k):
    """Subtract the mean of each shard from its rows, as batch norm does."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        for own, X_shard, y_shard in zip(replicas, cut(X, k), cut(y, k)):
            clear(own)
            centre = X_shard.sum(0) / max(1, len(X_shard))
            loss(own, X_shard - centre, y_shard).sum().backward()
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def rate_falls_by_rank(params, batches, k):
    """Lower the rate once for every rank, not once for every step."""
    replicas, rate = [copy_params(params) for _ in range(k)], 0.5
    for X, y in batches:
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            descend(own, rate / len(X))
        rate *= 0.9 ** k
    return replicas


def small_batches_dropped(params, batches, k):
    """Skip a minibatch that has fewer rows than ranks."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        if len(X) < k:
            continue
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def two_at_most(params, batches, k):
    """Add up the first two ranks' gradients, and forget any third."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        backward(replicas, X, y)
        for same in zip(*replicas):
            total = sum(p.grad for p in same[:2])
            for p in same:
                p.grad = total.clone()
        for own in replicas:
            descend(own, 0.5 / len(X))
    return replicas


def in_half_precision(params, batches, k):
    """Send the gradients in float16 when there are several ranks."""
    replicas = [copy_params(params) for _ in range(k)]
    for X, y in batches:
        backward(replicas, X, y)
        sum_gradients(replicas)
        for own in replicas:
            for p in own:
                p.grad = p.grad.half().to(p.dtype) if k > 1 else p.grad
            descend(own, 0.1 / len(X))
    return replicas


BUGS = [mean_of_means, rate_for_k, clipped_before_the_sum, adam_before_the_sum,
        every_second_sum, late_by_a_step, others_behind, rows_of_its_own_mean,
        rate_falls_by_rank, small_batches_dropped, two_at_most, in_half_precision]
