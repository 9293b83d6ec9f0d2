"""Where the time of a step goes: load, forward, backward, all-reduce, update.

    laps     the seconds of each part, on this rank, in the median of some steps
    PARTS    their names, in order

The gradients are sent after backward, a bucket at a time, as `BucketDDP` does. So the
parts follow each other, and add up to the step. On a GPU the clock is read when all is
done: there, too, a part is what it costs and not what it costs to ask for it.
"""

from statistics import median

from torch.nn import functional as F

from course.lab.turns import clock
from manual_dp.ranks import make_buckets

PARTS = ("load", "forward", "backward", "all-reduce", "update")


def laps(net, optimizer, loader, steps=5):
    """Take `steps` steps after a first that is not timed; return {part: seconds}.

    Call it on every rank. loader: of this rank; it is begun again where it ends.
    """
    buckets = make_buckets(list(net.parameters()), 25)
    batches, rounds = _endless(loader), []
    for _ in range(steps + 1):
        times = [clock()]
        for part in _step(net, optimizer, batches, buckets):
            part()
            times.append(clock())
        rounds.append([end - begin for begin, end in zip(times, times[1:])])
    return {part: median(seconds) for part, seconds in zip(PARTS, zip(*rounds[1:]))}


def _step(net, optimizer, batches, buckets):
    """Yield the parts of a step, each as a function to call."""
    kept = {}

    def load():
        kept["X"], kept["y"] = next(batches)

    def forward():
        kept["loss"] = F.cross_entropy(net(kept["X"]), kept["y"])

    def backward():
        kept["loss"].backward()

    def send():
        for bucket in buckets:
            for p in bucket.params:
                bucket.put(p)
            bucket.start()
        for bucket in buckets:
            bucket.wait()

    def update():
        optimizer.step()
        optimizer.zero_grad()
    return load, forward, backward, send, update


def _endless(loader):
    while True:
        yield from loader
