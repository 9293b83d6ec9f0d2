"""Programs that see: detection, segmentation, metric learning, CLIP, MoCo, BYOL."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.heldout.parts import (
    AddUp,
    Gather,
    add_up,
    average,
    draw,
    draw_ids,
    gather,
    mine,
    mlp,
)


class Detector(nn.Module):
    """Return a class and a box for each of five places, as a dict."""

    def __init__(self):
        super().__init__()
        self.trunk = mlp(6, 10)
        self.classes, self.boxes = nn.Linear(10, 5 * 3), nn.Linear(10, 5 * 4)

    def forward(self, x):
        x = self.trunk(x)
        return {"logits": self.classes(x).unflatten(1, (5, 3)),
                "boxes": self.boxes(x).unflatten(1, (5, 4))}


def detection(bug=None):
    """Add two heads' losses, over the mean number of boxes of a rank, as DETR does."""
    def make_model():
        model = DDP(Detector())
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def make_batch(t):
        there = draw(t, 12, 5, seed=1) > 0.2
        if t:
            there[8:] = False
        return {"images": draw(t, 12, 6), "there": there, "boxes": draw(t, 12, 5, 4),
                "labels": draw_ids(t, 3, 12, 5)}

    def number_of_boxes(there):
        number = there.sum()
        if bug == "boxes_of_own_rank":
            return number.clamp(min=1)
        if bug == "rank_without_boxes_does_not_add" and number == 0:
            return number.clamp(min=1)
        number = add_up(number)
        if bug != "not_divided_by_world_size":
            number = number / dist.get_world_size()
        return number.clamp(min=1)

    def step(model, optimizer, batch):
        own = {name: mine(rows) for name, rows in batch.items()}
        out, there = model(own["images"]), own["there"]
        number = number_of_boxes(there)
        kind = F.cross_entropy(out["logits"][there], own["labels"][there],
                               reduction="sum")
        place = F.l1_loss(out["boxes"][there], own["boxes"][there], reduction="sum")
        optimizer.zero_grad()
        ((2 * kind + 5 * place) / number).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


def segmentation_dice(bug=None):
    """Add cross-entropy and one dice coefficient over all ranks' pixels."""
    def make_model():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(),
                              nn.Conv2d(4, 1, 1))
        return model, torch.optim.SGD(model.parameters(), 0.5)

    def make_batch(t):
        X = draw(t, 8, 2, 6, 6)
        return X, (X.sum(1, keepdim=True) > draw(t, 8, 1, 1, 1, seed=3)).to(X.dtype)

    def over_ranks(value):
        if bug == "dice_of_own_rows":
            return value
        if bug == "added_in_place":
            value = value + 0
            dist.all_reduce(value.detach())
            return value
        return AddUp.apply(value)

    def step(model, optimizer, X, y):
        X, y = mine(X), mine(y)
        logits = model(X)
        p = logits.sigmoid()
        both, either = over_ranks((p * y).sum()), over_ranks(p.sum() + y.sum())
        loss = F.binary_cross_entropy_with_logits(logits, y) + 1 - 2 * both / either
        optimizer.zero_grad()
        loss.backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def metric_learning(bug=None):
    """Compare own rows with the gathered rows of all ranks, batch-all triplets."""
    def make_model():
        model = DDP(mlp(5, 8, 3))
        return model, torch.optim.Adam(model.parameters(), 0.01)

    def make_batch(t):
        return draw(t, 12, 5), draw_ids(t, 3, 12)

    def others(rows, labels):
        if bug == "own_rows_only":
            return rows, labels
        if bug != "gathered_without_gradient":
            return Gather.apply(rows), gather(labels)
        parts = list(gather(rows).chunk(dist.get_world_size()))
        parts[dist.get_rank()] = rows
        return torch.cat(parts), gather(labels)

    def step(model, optimizer, X, y):
        y = mine(y)
        own = F.normalize(model(mine(X)), dim=1)
        rows, labels = others(own, y)
        distances = (own[:, None] - rows[None]).square().sum(2)
        same = (y[:, None] == labels[None]).to(distances.dtype)
        gaps = 0.5 + distances[:, :, None] - distances[:, None]
        pairs = same[:, :, None] * (1 - same[:, None])
        loss = (F.softplus(gaps) * pairs).sum() / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class TwoTowers(nn.Module):
    """Return image rows, text rows and the scale of their products."""

    def __init__(self):
        super().__init__()
        self.image, self.words = mlp(6, 4), nn.EmbeddingBag(13, 4)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        return (F.normalize(self.image(image)), F.normalize(self.words(text)),
                self.scale.exp())


def clip_image_text(bug=None):
    """Tell each image's text from all ranks' texts, and the other way round."""
    def make_model():
        model = DDP(TwoTowers())
        return model, torch.optim.SGD(model.parameters(), 0.3, momentum=0.8)

    def make_batch(t):
        return {"image": draw(t, 9, 6), "text": draw_ids(t, 13, 9, 5)}

    def step(model, optimizer, batch):
        image, text, scale = model(mine(batch["image"]), mine(batch["text"]))
        first = dist.get_rank() * len(image)
        if bug == "own_rows_only":
            images, texts, first = image, text, 0
        else:
            images, texts = Gather.apply(image), Gather.apply(text)
        if bug == "labels_not_moved_by_rank":
            first = 0
        target = torch.arange(len(image)) + first
        loss = (F.cross_entropy(scale * image @ texts.T, target)
                + F.cross_entropy(scale * text @ images.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bug != "scale_clamped_on_rank_0" or dist.get_rank() == 0:
            model.module.scale.data.clamp_(0, 0.95)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class MoCo(nn.Module):
    """Hold an encoder, its running mean, and a queue of old keys."""

    def __init__(self, bug=None):
        super().__init__()
        self.query = mlp(5, 6, 4)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(draw(0, 16, 4, seed=9)))
        self.bug = bug

    @torch.no_grad()
    def keys(self, x):
        if self.bug != "running_mean_on_rank_0" or dist.get_rank() == 0:
            for slow, fast in zip(self.key.parameters(), self.query.parameters()):
                slow.lerp_(fast, 0.2)
        return F.normalize(self.key(x))

    def enqueue(self, keys):
        if self.bug == "own_keys_queued":
            keys = torch.cat([keys] * dist.get_world_size())
        else:
            keys = gather(keys)
        self.queue.copy_(torch.cat([self.queue, keys])[-len(self.queue):])

    def forward(self, one, two):
        q, k, queue = F.normalize(self.query(one)), self.keys(two), self.queue.clone()
        self.enqueue(k)
        return torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2


def moco(bug=None):
    """Contrast own queries with a queue that holds all ranks' keys."""
    def make_model():
        model = MoCo(bug)
        wanted = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.SGD(wanted, 0.2, momentum=0.9)

    def make_batch(t):
        X = draw(t, 8, 5)
        return X, X + 0.3 * draw(t, 8, 5, seed=1)

    def step(model, optimizer, one, two):
        logits = model(mine(one), mine(two))
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def byol(bug=None):
    """Predict a slow network's view of the other picture."""
    def make_model():
        rank = dist.get_rank()
        online = mlp(6, 8, 5, 5, seed=rank)
        target = copy.deepcopy(online).requires_grad_(False)
        online = DDP(online)
        if bug != "target_copied_before_the_broadcast":
            target.load_state_dict(online.module.state_dict())
        rows = 12 / dist.get_world_size() if bug == "lr_by_own_rows" else 12
        return online, torch.optim.SGD(online.parameters(), 0.02 * rows), target

    def make_batch(t):
        X = draw(t, 12, 6)
        return X + 0.1 * draw(t, 12, 6, seed=1), X + 0.1 * draw(t, 12, 6, seed=2)

    def step(online, optimizer, target, one, two):
        one, two = mine(one), mine(two)
        guess = online(torch.cat([one, two]))
        with torch.no_grad():
            truth = target(torch.cat([two, one]))
        loss = 2 - 2 * F.cosine_similarity(guess, truth).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 4}


def distillation(bug=None):
    """Teach a small network with a larger one that is never trained."""
    def make_model():
        torch.manual_seed(dist.get_rank() if bug == "teacher_by_rank" else 0)
        teacher = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))
        student = DDP(mlp(5, 6, 4))
        teacher.requires_grad_(False).eval()
        return student, torch.optim.AdamW(student.parameters(), 0.02), teacher

    def make_batch(t):
        return draw(t, 12, 5), draw_ids(t, 4, 12)

    def step(student, optimizer, teacher, X, y):
        X, y = mine(X), mine(y)
        out = student(X)
        with torch.no_grad():
            truth = F.softmax(teacher(X) / 2, 1)
        soft = F.kl_div(F.log_softmax(out / 2, 1), truth, reduction="batchmean")
        optimizer.zero_grad()
        (F.cross_entropy(out, y) + 4 * soft).backward()
        optimizer.step()
        if bug == "rank_0_leaves_eval" and dist.get_rank() == 0:
            teacher.train()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}
