"""What crosses between devices in one step of DataParallel, seen in a real run.

    record    forward and backward; who sent what to whom, as a `Wire.log`
    totals    the bytes out of each device, and into it

Tensors are noted where the step itself copies them: rows and weights on their way out,
outputs on their way back. A hook on each copy notes the gradient that comes over the
same way in backward.
"""

from manual_dp.lab.wire import Sent
from manual_dp.parallel import gather, parallel_apply, replicate
from manual_dp.split import scatter


def record(module, devices, X, y, loss):
    """Take forward and backward of DataParallel; return what was sent, in order.

    module, X, y: on devices[0]. loss: of (all outputs, y). Gradients are added to
    those that `module` has, as in any backward.
    """
    log = []
    X_shards = [shard for shard in scatter(X, devices) if len(shard)]
    replicas = replicate(module, devices[:len(X_shards)])
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


def totals(log, world_size):
    """Return (sent, received): the bytes out of each device, and into each."""
    sent, received = ([0] * world_size for _ in range(2))
    for entry in log:
        sent[entry.source] += entry.size
        received[entry.target] += entry.size
    return sent, received


def _note(log, tensor, source, target, what, back=None):
    """Note a tensor that goes to another device, and its gradient when it returns."""
    def note(tensor, source, target, what):
        log.append(Sent(source, target, what, tensor.numel() * tensor.element_size()))

    if source != target:
        note(tensor, source, target, what)
        if back and tensor.requires_grad:
            tensor.register_hook(lambda grad: note(grad, target, source, back))
