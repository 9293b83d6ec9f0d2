"""Broken programs: a ResNet under DDP that trains an epoch a step, from a loader.

`epochs` is right: a DistributedSampler, its epoch set, a shard of each minibatch.
"""

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.support.audited.broken_parts import (
    broken,
    broken2,
    dice,
    first,
    plain,
    world,
    wrapped,
)
from tests.support.audited.broken_resnet import (
    cross_entropy,
    images,
    make_resnet,
    nesterov,
)


def distributed(data):
    rank, world_size = world()
    return DistributedSampler(data, world_size, rank, seed=7)


def set_on_all(sampler, epoch):
    sampler.set_epoch(epoch)


def share_of(batch):
    return batch // dist.get_world_size()


def epochs(sampler=distributed, tell=set_on_all, batch=share_of, stop=None,
           data=plain, rows=24, drop_last=False, world_size=2):
    """Return audit's arguments for a ResNet that trains an epoch a step."""
    def make_model():
        model = wrapped(make_resnet())
        whole = TensorDataset(*images(rows, dice(0, 9)))
        part = data(whole)
        loader = DataLoader(part, batch(12), sampler=sampler(part),
                            drop_last=drop_last)
        optimizer = nesterov(model, lr=0.1)
        return model, optimizer, CosineAnnealingLR(optimizer, T_max=8), loader

    def step(model, optimizer, scheduler, loader):
        tell(loader.sampler, scheduler.last_epoch)
        for X, y in loader:
            optimizer.zero_grad()
            l = cross_entropy(model(X), y)
            l.backward()
            optimizer.step()
            if stop and stop(l.item()):
                break
        scheduler.step()

    return {"make_model": make_model, "make_batch": None, "step": step,
            "world_size": world_size}


# samplers

def of_rank0(data):
    return DistributedSampler(data, dist.get_world_size(), 0, seed=7)


def of_one_replica(data):
    return DistributedSampler(data, 1, 0, seed=7)


def of_twice_the_ranks(data):
    """Take the devices of two machines where there is one."""
    rank, world_size = world()
    return DistributedSampler(data, 2 * world_size if world_size > 1 else 1, rank,
                              seed=7)


def seeded_by_rank(data):
    rank, world_size = world()
    return DistributedSampler(data, world_size, rank, seed=7 + rank)


def shuffled_on_rank0(data):
    rank, world_size = world()
    return DistributedSampler(data, world_size, rank, shuffle=rank == 0, seed=7)


def by_machine(data):
    """Count machines where ranks are meant: all are 0 but the last."""
    rank, world_size = world()
    machine = (rank + 1) // world_size if world_size > 1 else 0
    return DistributedSampler(data, world_size, machine, seed=7)


class Shuffled(RandomSampler):
    """Shuffle everything, without a thought of ranks."""

    def set_epoch(self, epoch):
        self.generator = dice(epoch, self.seed)


def same_shuffle(data):
    sampler = Shuffled(data, num_samples=len(data) // dist.get_world_size())
    sampler.seed = 3
    return sampler


def own_shuffle(data):
    sampler = same_shuffle(data)
    sampler.seed = 3 + dist.get_rank()
    return sampler


def never(sampler, epoch):
    pass


def on_rank0(sampler, epoch):
    if first():
        sampler.set_epoch(epoch)


def by_rank(sampler, epoch):
    sampler.set_epoch(10 * epoch + dist.get_rank())


def always_the_first(sampler, epoch):
    sampler.set_epoch(0)


# numbers of batches

class Part(Subset):
    """Deal the rows out by hand, unevenly."""

    def __init__(self, data):
        rank, world_size = world()
        super().__init__(data, range(rank, len(data), world_size))


class Growing(Subset):
    """Give later ranks more rows, as folders of different sizes do."""

    def __init__(self, data):
        rank, world_size = world()
        cuts = [len(data) * r * (r + 1) // (world_size * (world_size + 1))
                for r in range(world_size + 1)]
        super().__init__(data, range(cuts[rank], cuts[rank + 1]))


class InOrder(torch.utils.data.SequentialSampler):
    """Take the rows as they come."""

    def set_epoch(self, epoch):
        pass


def good_enough(loss):
    return loss < 1.4


def larger_on_rank0(batch):
    share = batch // dist.get_world_size()
    return 2 * share if first() and dist.get_world_size() > 1 else share


BROKEN = {
    "sampler of rank 0": broken2("sampler-settings rows-same", epochs,
                                 sampler=of_rank0),
    "sampler of one replica": broken2("sampler-settings rows-same", epochs,
                                      sampler=of_one_replica),
    "sampler of twice the ranks": broken2("sampler-settings rows-missed", epochs,
                                          sampler=of_twice_the_ranks),
    "sampler of a wrong rank": broken2("sampler-settings rows-overlap", epochs,
                                       world_size=3, sampler=by_machine),
    "sampler seeded by rank": broken("sampler-seed", epochs, sampler=seeded_by_rank),
    "sampler shuffles on rank 0": broken2("sampler-settings rows-overlap", epochs,
                                          sampler=shuffled_on_rank0),
    "same shuffle on all ranks": broken("rows-same", epochs, sampler=same_shuffle),
    "own shuffle on each rank": broken("rows-overlap", epochs, sampler=own_shuffle),
    "epoch never set": broken("sampler-epoch", epochs, tell=never),
    "epoch set on rank 0": broken2("sampler-epoch rows-overlap", epochs, tell=on_rank0),
    "epoch set by rank": broken2("sampler-epoch rows-overlap", epochs, tell=by_rank),
    "epoch always 0": broken("sampler-epoch", epochs, tell=always_the_first),
    "one batch more on rank 0": broken("unequal-batches", epochs, rows=25, data=Part,
                                       sampler=InOrder),
    "folders of different sizes": broken("unequal-batches", epochs, data=Growing,
                                         sampler=InOrder, drop_last=True),
    "stops where the loss is small": broken2("unequal-batches hang", epochs, rows=48,
                                             stop=good_enough),
    "larger batches on rank 0": broken("unequal-batches", epochs,
                                       batch=larger_on_rank0),
}
