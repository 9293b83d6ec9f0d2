"""Right programs: losses that are more than a mean over a rank's rows."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn import functional as F

from tests.support.audited.pieces import (
    block,
    ddp_mlp,
    ddp_sgd,
    generator_of,
    mlp,
    part,
    rows,
    sgd_of,
    targets,
)


def variance_over_all_rows():
    """Correlation needs means and variances over all rows: sums that send gradients."""
    def step(model, optimizer, X, y):
        out, wanted = model(part(X))[:, 0], part(y)[:, 0]
        n = len(y)
        sums = dist_nn.all_reduce(torch.stack([
            out.sum(), wanted.sum(), (out * wanted).sum(), (out ** 2).sum(),
            (wanted ** 2).sum()])) / n
        covariance = sums[2] - sums[0] * sums[1]
        spread = (sums[3] - sums[0] ** 2) * (sums[4] - sums[1] ** 2)
        optimizer.zero_grad()
        (-covariance / (spread + 1e-6).sqrt()).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": targets(12), "step": step,
            "world_size": 3}


def padded(n):
    """Return make_batch: n rows of up to 7 vectors, a class each, -100 for padding."""
    def make_batch(t):
        g = generator_of(t, n)
        X = torch.randn(n, 7, 6, generator=g)
        y = torch.randint(3, (n, 7), generator=g)
        lengths = torch.arange(n) % 6 + 1
        return X, torch.where(torch.arange(7)[None] < lengths[:, None], y, -100)
    return make_batch


def mean_over_all_tokens():
    def step(model, optimizer, X, y):
        X, y = part(X), part(y)
        loss = F.cross_entropy(model(X).flatten(0, 1), y.flatten(), ignore_index=-100,
                               reduction="sum")
        n = (y != -100).sum()
        dist.all_reduce(n)
        optimizer.zero_grad()
        (loss / n * dist.get_world_size()).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": padded(8), "step": step}


def tokens_of_micro_batches():
    """Accumulation over tokens: their number in all micro-batches of all ranks."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        n = (y != -100).sum()
        dist.all_reduce(n)
        optimizer.zero_grad()
        for i in range(2):
            model.require_backward_grad_sync = i == 1
            out = model(X[i::2])
            loss = F.cross_entropy(out.transpose(1, 2), y[i::2], reduction="sum")
            (loss * dist.get_world_size() / n).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": padded(12), "step": step,
            "world_size": 3}


def uneven_rows_weighted():
    """11 rows on 3 ranks; the sum over rows times world size, divided by 11."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        losses = F.cross_entropy(model(part(X)), part(y), reduction="none")
        (losses.sum() * dist.get_world_size() / len(X)).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(11), "step": step,
            "world_size": 3}


def triplets():
    """A triplet loss, weighted by row, over all triplets' weights."""
    def make_batch(t):
        g = generator_of(t)
        return {**{k: torch.randn(8, 6, generator=g) for k in "apn"},
                "weight": torch.rand(8, generator=g) + 0.5}

    def step(model, optimizer, batch):
        a, p, n, w = (part(batch[k]) for k in ("a", "p", "n", "weight"))
        a, p, n = model(torch.cat([a, p, n])).chunk(3)
        losses = F.triplet_margin_loss(a, p, n, margin=0.5, reduction="none")
        scale = dist.get_world_size() / batch["weight"].sum()
        optimizer.zero_grad()
        ((losses * w).sum() * scale).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


def distillation():
    """A frozen teacher, and a student near it; KL is a mean over rows."""
    def make_model():
        teacher = mlp(seed=9).eval()
        for p in teacher.parameters():
            p.requires_grad_(False)
        student = ddp_mlp()
        return student, teacher, torch.optim.AdamW(student.parameters(), lr=0.01)

    def step(student, teacher, optimizer, X, y):
        X, y = block(X), block(y)
        out = student(X)
        soft = F.kl_div(F.log_softmax(out / 2, -1), F.softmax(teacher(X) / 2, -1),
                        reduction="batchmean") * 4
        optimizer.zero_grad()
        (0.5 * soft + 0.5 * F.cross_entropy(out, y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def l2_in_the_loss():
    """A term on the parameters: the same on all ranks, so their mean leaves it."""
    def step(model, optimizer, X, y):
        loss = F.mse_loss(model(part(X)).mean(1, keepdim=True), part(y))
        loss = loss + 0.01 * sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": targets(8), "step": step}


def l2_added_after_the_mean():
    def make_model():
        model = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            p.grad += 0.01 * p.detach()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def gradient_penalty():
    """The slope of the output by the input is in the loss: a second derivative."""
    def make_model():
        model = mlp()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        X, y = part(X).clone().requires_grad_(), part(y)
        out = model(X)
        slope, = torch.autograd.grad(out.sum(), X, create_graph=True)
        loss = F.cross_entropy(out, y) + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.classify, self.measure = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        return {"class": self.classify(h), "value": self.measure(h).squeeze(-1)}


def two_tasks():
    def make_batch(t):
        X, y = rows(8)(t)
        return X, {"class": y, "value": X.sum(1)}

    def step(model, optimizer, X, wanted):
        out = model(block(X))
        losses = [F.cross_entropy(out["class"], block(wanted["class"])),
                  F.huber_loss(out["value"], block(wanted["value"]))]
        optimizer.zero_grad()
        sum(w * loss for w, loss in zip((1.0, 0.3), losses)).backward()
        optimizer.step()
    return {"make_model": sgd_of(TwoHeads), "make_batch": make_batch, "step": step,
            "world_size": 4}


def policy_with_a_baseline():
    """The advantage is normalised by the mean and deviation of all ranks' rewards."""
    def step(model, optimizer, X, action):
        X, action = part(X), part(action)
        reward = X[:, 0] * (action + 1)
        sums = torch.stack([reward.sum(), reward.square().sum(),
                            torch.tensor(float(len(reward)))])
        dist.all_reduce(sums)
        mean, square = sums[:2] / sums[2]
        advantage = (reward - mean) / (square - mean ** 2 + 1e-8).sqrt()
        log_p = F.log_softmax(model(X), -1).gather(1, action[:, None])[:, 0]
        optimizer.zero_grad()
        (-(log_p * advantage).mean()).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(12), "step": step,
            "world_size": 3}


RIGHT = {f.__name__: f for f in (
    variance_over_all_rows, mean_over_all_tokens, tokens_of_micro_batches,
    uneven_rows_weighted, triplets, distillation, l2_in_the_loss,
    l2_added_after_the_mean, gradient_penalty, two_tasks, policy_with_a_baseline)}
