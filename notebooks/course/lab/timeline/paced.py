"""A real run whose parts are made to last whole ticks: certain on any machine.

    run        real steps of DDP by hand on ranks, at such a pace; spans in ticks
    train      the same on one rank, by `record` or by what else notes it

Ranks, gradients and all-reduces are real. Only their time is made: each part sleeps.
So four ranks are as fast on two cores as they would be on four.
"""

import time
from contextlib import nullcontext

import torch
from torch.utils.data import DataLoader, Dataset

from course.lab.slow import slow_network, slow_wire
from course.lab.timeline.pace import check
from course.lab.timeline.predict import predict
from course.lab.timeline.record import record
from course.lab.timeline.spans import in_ticks, merge
from course.lab.trace import agreed
from manual_dp.ranks import DDP, run_ranks

WIDTH = 8        # of each layer
TIMEOUT = 120    # seconds for one run
TICK = 0.08      # seconds


def run(pace, world_size, rows, steps=1, layers=1, workers=0, slow=None, tick=TICK):
    """Take steps on `world_size` ranks, `rows` rows on each; return spans in ticks.

    layers: that the network has, and so the buckets that are sent. workers: processes
    of each rank that load ahead; 0 is the rank itself. slow: {rank: factor}, how many
    times as long this rank computes. One rank alone sends nothing. A run that is not as
    predicted is repeated until three agree, as in `trace.agreed`; with workers, two.
    """
    check(pace, world_size, rows, steps, layers, slow)
    args = record, pace, rows, steps, layers, workers, slow or {}, tick

    def once():
        return merge(run_ranks(train, world_size, *args, timeout=TIMEOUT))
    known = None if workers else predict(pace, world_size, rows, steps, layers, slow)
    return agreed(once, tick, rounded=in_ticks, known=known)


def train(note, pace, rows, steps=1, layers=1, workers=0, slow=(), tick=TICK):
    """Call note(model, optimizer, batches, steps) on this rank, all at this pace.

    The rest as `run`. note: such as `record`, or `profiler.beside`.
    """
    rank, n = torch.distributed.get_rank(), torch.distributed.get_world_size()
    slow = dict(slow)
    a_layer = tick * rows * slow.get(rank, 1) / layers
    torch.manual_seed(0)
    net = slow_network(layers, pace.backward * a_layer, WIDTH, pace.forward * a_layer)
    model = DDP(net, bucket_cap_mb=1e-6)  # a bucket for each layer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: time.sleep(pace.update * tick))
    _start_up(layers)
    batches = _batches(pace.load * tick, rows, steps, workers)
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    sends = n > 1 and pace.wire > 0
    with slow_wire(size / (pace.wire * tick)) if sends else nullcontext():
        return note(model, optimizer, batches, steps)


def _start_up(layers):
    """Take a step without any sleep: the first one of a process is slower."""
    model = DDP(slow_network(layers, 0, WIDTH), bucket_cap_mb=1e-6)
    model(torch.ones(1, WIDTH)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


class SlowFile(Dataset):
    """Let each minibatch take `seconds` to read."""

    def __init__(self, seconds, rows, count):
        self.seconds, self.rows, self.count = seconds, rows, count

    def __len__(self):
        """Return how many minibatches there are."""
        return self.count

    def __getitem__(self, i):
        """Return minibatch i after its time."""
        time.sleep(self.seconds)
        return torch.ones(self.rows, WIDTH), torch.arange(self.rows) % WIDTH


def _batches(seconds, rows, steps, workers):
    """Return an iterator of minibatches; with workers, their store is full by now."""
    if not workers:
        return iter(DataLoader(SlowFile(seconds, rows, steps), None))
    ahead = 2 * workers
    batches = iter(DataLoader(SlowFile(seconds, rows, steps + 1), None,
                              num_workers=workers, prefetch_factor=2))
    next(batches)  # the workers have started
    time.sleep((min(ahead, steps) + 1) * seconds)
    return batches
