"""Log what devices send one another: a list of Sent(source, target, what, size).

    sends           the log of an all-reduce
    crossing        the log of one step of DataParallel
    transfers       a log with each thing once
    totals          a log's bytes out of each device, and into it

Devices are known by their number, so that a log says who sent to whom also where all of
them are the one CPU.
"""

from collections import namedtuple

from course.lab.allreduce_trace import record
from manual_dp.parallel import gather, parallel_apply, replicate
from manual_dp.split import scatter

Sent = namedtuple("Sent", "source target what size")


def sends(allreduce, tensors, what):
    """Call `allreduce(tensors)`; return what it sent, in order, as a log."""
    done = {"add": "added", "copy": "copied"}
    return [
        Sent(
            transfer.source,
            transfer.target,
            f"{what}, {done[transfer.kind]}",
            transfer.size,
        )
        for transfer in record(allreduce, tensors)
    ]


def crossing(module, devices, X, y, loss):
    """Take forward and backward of DataParallel; return what was sent, in order.

    module, X, y: on devices[0]. loss: of (all outputs, y). Gradients are added to
    those that `module` has, as in any backward.
    """
    log = []
    X_shards = [shard for shard in scatter(X, devices) if len(shard)]
    replicas = replicate(module, devices[: len(X_shards)])
    for rank, (shard, replica) in enumerate(zip(X_shards, replicas)):
        _note(log, shard, 0, rank, "rows")
        for p in replica.parameters():
            _note(log, p, 0, rank, "weights", "gradients")
        for buffer in replica.buffers():
            _note(log, buffer, 0, rank, "buffers")
    outputs = parallel_apply(replicas, X_shards)
    for rank, output in enumerate(outputs):
        _note(log, output, rank, 0, "outputs", "gradients of outputs")
    loss(gather(outputs, devices[0]), y).backward()
    return log


def transfers(log):
    """Add up a log by what was sent: a list of (what, bytes, sender).

    The sender is "both" where more than one device sent a part of it.
    """
    sizes, senders = {}, {}
    for sent in log:
        sizes[sent.what] = sizes.get(sent.what, 0) + sent.size
        senders.setdefault(sent.what, set()).add(sent.source)
    return [
        (what, size, "both" if len(senders[what]) > 1 else min(senders[what]))
        for what, size in sizes.items()
    ]


def totals(log, world_size):
    """Return (sent, received): the bytes out of each device, and into each."""
    sent, received = [0] * world_size, [0] * world_size
    for entry in log:
        sent[entry.source] += entry.size
        received[entry.target] += entry.size
    return sent, received


def _note(log, tensor, source, target, what, back=None):
    """Note a tensor that goes to another device; with `back`, its gradient's return."""
    if source == target:
        return
    log.append(Sent(source, target, what, tensor.nbytes))
    if back and tensor.requires_grad:
        tensor.register_hook(lambda grad: _note(log, grad, target, source, back))
