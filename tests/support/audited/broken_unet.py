"""Broken programs: a U-Net with deep supervision, mostly under this course's DDP.

`unet` is right: pixels without a label count for nothing, on whatever rank they are.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from manual_dp.ranks import DDP, BucketDDP, NaiveDDP
from tests.support.audited.broken_parts import (
    average,
    block,
    broken,
    broken2,
    dice,
    first,
    plain,
    world,
    wrapped,
)

UNKNOWN = 255


def conv(n, m):
    return nn.Sequential(nn.Conv2d(n, m, 3, padding=1), nn.InstanceNorm2d(m), nn.ELU())


class UNet(nn.Module):
    """Segment 8x8 images, with a second head half-way up."""

    def __init__(self, channels=6):
        super().__init__()
        self.down = conv(1, channels)
        self.bottom = conv(channels, channels)
        self.half_way = nn.Conv2d(channels, 3, 1)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.merge = conv(2 * channels, channels)
        self.head = nn.Conv2d(channels, 3, 1)

    def forward(self, x):
        skip = self.down(x)
        deep = self.bottom(F.max_pool2d(skip, 2))
        x = self.merge(torch.cat([skip, self.up(deep)], 1))
        return self.head(x), F.interpolate(self.half_way(deep), scale_factor=2)


def make_unet():
    torch.manual_seed(61)
    return UNet()


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def pixels(logits, goal):
    return F.cross_entropy(logits, goal, ignore_index=UNKNOWN, reduction="sum")


def over_known(total, known, all_known):
    """Return what DDP averages to the mean over the minibatch's known pixels."""
    return total * dist.get_world_size() / all_known


def no_overlap(logits, goal):
    return 0.0


def unet(wrap=BucketDDP, net=make_unet, optimize=momentum, loss=pixels,
         divide=over_known, extra=no_overlap, take=block, goals=block, sync=plain,
         after=plain, world_size=2):
    """Return audit's arguments for a U-Net with deep supervision."""
    def make_model():
        model = wrap(net())
        return model, optimize(model)

    def make_batch(t):
        images = torch.rand(6, 1, 8, 8, generator=dice(t))
        masks = (images[:, 0] * 3).long().clamp(max=2)
        for i in range(len(masks)):
            masks[i, :i] = UNKNOWN
        return {"image": images, "mask": masks}

    def step(model, optimizer, batch):
        image, goal = take(batch["image"]), goals(batch["mask"])
        optimizer.zero_grad()
        logits, half = model(image)
        known = (goal != UNKNOWN).sum()
        total = loss(logits, goal) + 0.3 * loss(half, goal)
        l = divide(total, known, (batch["mask"] != UNKNOWN).sum())
        (l + extra(logits, goal)).backward()
        sync(model)
        optimizer.step()
        after(model)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def over_mine(total, known, all_known):
    return total / known


def over_all(total, known, all_known):
    return total / all_known


def over_summed(total, known, all_known):
    """Sum the known pixels over ranks, and forget that DDP takes a mean."""
    count = known.clone()
    dist.all_reduce(count)
    return total / count


def over_all_pixels_of_mine(total, known, all_known):
    """Divide by known pixels, which only the first rank has counted."""
    count = known.clone()
    dist.broadcast(count, 0)
    return total / count


def dice_loss(logits, goal):
    """Return one minus the overlap over this rank's rows."""
    p = logits.softmax(1)[:, 1]
    q = (goal == 1).to(p)
    return 1 - 2 * (p * q).sum() / (p.sum() + q.sum())


def first_rows(v):
    return v[:len(v) // dist.get_world_size()]


def rows_before(v):
    """Take the rows of the rank before, round the ring."""
    rank, world_size = world()
    return v.tensor_split(world_size)[(rank - 1) % world_size]


def encoder_only(model):
    return momentum(model.module.down)


def half_forgotten(model):
    return torch.optim.SGD([p for name, p in model.named_parameters()
                            if "half_way" not in name], lr=0.05, momentum=0.9)


def frozen_on_others(net):
    if not first():
        net.down.requires_grad_(False)
    return net


def zeros_too(model):
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


def all_but_up(model):
    """Average all but the transposed convolution."""
    for name, p in model.named_parameters():
        if not name.startswith("up"):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def as_large_as_rank0s(model):
    """Scale every gradient to the norm that rank 0 has, after the mean."""
    for p in model.parameters():
        p.grad *= 1 + 0.1 * dist.get_rank()


def round_on_others(model):
    if not first():
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16())


def average_twice(model):
    average(model)
    for p in model.parameters():
        p.grad /= dist.get_world_size()


BROKEN = {
    "pixels of each rank": broken("uneven-shards", unet, divide=over_mine),
    "pixels of all, no world size": broken("averaged-twice", unet, divide=over_all),
    "pixels summed, no world size": broken("averaged-twice", unet, wrap=DDP,
                                           divide=over_summed),
    "pixels of rank 0": broken2("uneven-shards factor", unet, wrap=NaiveDDP,
                                divide=over_all_pixels_of_mine),
    "overlap of each rank": broken("local", unet, extra=dice_loss),
    "first rows": broken("rows-same", unet, wrap=wrapped, take=first_rows,
                         goals=first_rows),
    "masks of the rank before": broken("labels", unet, goals=rows_before),
    "encoder alone in the optimizer": broken("not-in-optimizer", unet,
                                             optimize=encoder_only),
    "half-way head in no optimizer": broken("not-in-optimizer", unet, wrap=NaiveDDP,
                                            optimize=half_forgotten),
    "encoder frozen on others": broken("frozen", unet, wrap=frozen_on_others,
                                       sync=zeros_too),
    "transposed convolution left out": broken("not-synchronised", unet, wrap=plain,
                                              sync=all_but_up),
    "scaled by rank after the mean": broken2("replicas-differ factor", unet,
                                             sync=as_large_as_rank0s),
    "rounded on others": broken("weights-changed", unet, after=round_on_others),
    "averaged by hand and halved": broken("averaged-twice", unet, wrap=plain,
                                          sync=average_twice),
}
