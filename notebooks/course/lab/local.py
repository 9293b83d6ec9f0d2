"""Local SGD: each rank trains on its own, and now and then all average their weights.

    local_sgd        train for some steps; average after every so many of them
    average_weights  set every rank's weights to the mean over ranks, in one message

DDP averages gradients in every step, so its replicas are always equal. Here replicas
move apart, up to the next average (Stich 2019). Costs: the bytes of one all-reduce of
the weights, every so many steps.
"""

import torch
import torch.distributed as dist


def local_sgd(model, optimizer, loss, batches, every, watch=None):
    """Train this rank's `model` on its own `batches`; average every `every` steps.

    All ranks must begin with the same weights, and have equally many batches. `loss`
    is called as loss(scores, y). The optimizer's state, such as momentum, is the
    rank's own. watch: called with the model after every step.
    """
    _check_every(every)
    for step, (X, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss(model(X), y).backward()
        optimizer.step()
        if step % every == 0:
            average_weights(model)
        if watch:
            watch(model)


@torch.no_grad()
def average_weights(model):
    """Set weights, and buffers that are floats, to their mean over ranks, in place."""
    tensors = [t for t in (*model.parameters(), *model.buffers())
               if t.is_floating_point()]
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(part.view_as(t))


def _check_every(every):
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of steps >= 1, got {every!r}")
