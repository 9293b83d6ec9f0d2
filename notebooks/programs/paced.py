"""Real steps whose parts are made to last whole ticks: run by count_price_look.

    run     steps of DDP by hand on ranks, at a pace; their spans in ticks
    train   the same on one rank, by `timeline.record` or by what else notes it

Ranks, gradients and all-reduces are real. Only their time is made: each part sleeps,
until a whole tick of the machine's clock, so that delays do not add up. Four ranks are
as fast on two cores as they would be on four.
"""

import time
from contextlib import nullcontext
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from course.lab.ticks import EARLY, agreed, slow_network, slow_wire
from course.lab.timeline import predict, record
from manual_dp.ranks import DDP, run_ranks

WIDTH = 8     # of each layer
TICK = 0.08   # seconds


def run(pace, world_size, rows, steps=1, workers=0, slow=(), tick=TICK):
    """Take steps on `world_size` ranks, `rows` rows on each; return spans in ticks.

    workers: processes of each rank that load ahead; 0 is the rank itself. slow: {rank:
    factor}, how many times as long it computes. One rank alone sends nothing. A run
    that is not as predicted, loading hidden by workers, is repeated until three agree.
    """
    def once():
        ranks = run_ranks(train, world_size, record, pace, rows, steps, workers,
                          dict(slow), tick, timeout=120)
        begin = tick * int(min(spans[0].start for spans in ranks) / tick + EARLY)
        return [span._replace(start=span.start - begin, end=span.end - begin)
                for spans in ranks for span in spans]
    hidden = pace._replace(load=0) if workers else pace
    return agreed(once, tick, known=predict(hidden, world_size, rows, steps, slow=slow))


def train(note, pace, rows, steps=1, workers=0, slow=(), tick=TICK):
    """Call note(model, optimizer, batches, steps) on this rank, all at this pace."""
    a_step = tick * rows * dict(slow).get(dist.get_rank(), 1)
    torch.manual_seed(0)
    net = slow_network(1, pace.backward * a_step, WIDTH, pace.forward * a_step)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: time.sleep(pace.update * tick))
    _start_up()
    sends = pace.wire > 0 and dist.get_world_size() > 1
    wire = slow_wire(net[0].weight.nbytes / (pace.wire * tick)) if sends else nullcontext()
    with patch.object(time, "sleep", _until_a_tick(tick)), wire:
        batches = _batches(pace.load * tick, rows, steps, workers)
        dist.barrier()
        time.sleep(tick)
        return note(model, optimizer, batches, steps)


def _until_a_tick(tick, sleep=time.sleep):
    """Return a sleep that counts its seconds from the last whole tick."""
    def until(seconds):
        now = time.perf_counter()
        begin = tick * int(now / tick + EARLY)
        sleep(max(0, begin + seconds - now) if seconds else 0)
    return until


def _start_up():
    """Take a step without any sleep: the first one of a process is slower."""
    model = DDP(slow_network(1, 0, WIDTH))
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
    batches = iter(DataLoader(SlowFile(seconds, rows, steps + 1), None,
                              num_workers=workers, prefetch_factor=2))
    next(batches)  # the workers have started
    time.sleep((min(2 * workers, steps) + 1) * seconds)
    return batches
