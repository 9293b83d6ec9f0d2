"""Broken programs: a contrastive pair of encoders, and losses over a rank's own rows.

`contrastive` gathers both sides with their gradients; `balanced` is a classifier whose
loss and inputs are normalised by the whole minibatch.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.support.audited.broken_parts import (
    block,
    broken,
    broken2,
    dice,
    every,
    plain,
    world,
    wrapped,
)
from tests.support.heldout.parts import Gather


def gather(mine):
    return Gather.apply(mine)


def gather_detached(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach().contiguous())
    return torch.cat(parts)


def gather_but_mine(mine):
    """Gather without gradients, then put the own rows back, which have them."""
    rank, world_size = world()
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine.detach().contiguous())
    parts[rank] = mine
    return torch.cat(parts)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        self.text = nn.EmbeddingBag(20, 6, mode="mean")
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images, texts):
        return (F.normalize(self.image(images), dim=1),
                F.normalize(self.text(texts), dim=1), self.scale.exp())


def both_ways(a, b, scale):
    """Return the loss of all pairs, computed on every rank alike."""
    logits = scale * gather(a) @ gather(b).T
    goal = torch.arange(len(logits))
    return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2


def make_pair():
    torch.manual_seed(31)
    return Pair()


def lamb(model):
    return torch.optim.NAdam(model.parameters(), lr=5e-3)


def contrastive(loss=both_ways, wrap=wrapped, optimize=lamb, world_size=2):
    """Return audit's arguments for a contrastive pair of encoders."""
    def make_model():
        model = wrap(make_pair())
        return model, optimize(model)

    def make_batch(t):
        return (torch.randn(12, 8, generator=dice(t)),
                torch.randint(20, (12, 3), generator=dice(t, 1)))

    def step(model, optimizer, images, texts):
        optimizer.zero_grad()
        loss(*model(block(images), block(texts))).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def my_pairs(a, b, scale):
    logits = scale * a @ b.T
    goal = torch.arange(len(logits))
    return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2


def mine_against_detached(a, b, scale):
    """Compare the own rows with all; no gradient goes back to the others' rows."""
    rank = dist.get_rank()
    goal = rank * len(a) + torch.arange(len(a))
    return (F.cross_entropy(scale * a @ gather_but_mine(b).T, goal)
            + F.cross_entropy(scale * b @ gather_but_mine(a).T, goal)) / 2


def all_with_my_gradient(a, b, scale):
    logits = scale * gather_but_mine(a) @ gather_but_mine(b).T
    goal = torch.arange(len(logits))
    return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2


def goals_from_zero(a, b, scale):
    """Forget that rank r's pairs begin at row r * len(a)."""
    goal = torch.arange(len(a))
    return (F.cross_entropy(scale * a @ gather(b).T, goal)
            + F.cross_entropy(scale * b @ gather(a).T, goal)) / 2


def nothing_has_gradients(a, b, scale):
    logits = gather_detached(a) @ gather_detached(b).T
    goal = torch.arange(len(logits))
    return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2


def my_hardest(a, b, scale):
    """Take for each row the hardest negative among this rank's rows."""
    distance = torch.cdist(a, b)
    others = distance + 10 * torch.eye(len(a))
    return F.relu(distance.diag() - others.min(1).values + 0.5).mean()


def hardest(a, b, scale):
    return my_hardest(gather(a), gather(b), scale)


def triplets(hardest=hardest, world_size=2):
    """Return audit's arguments for batch-hard triplets of all ranks' rows."""
    return contrastive(loss=hardest, wrap=tolerant, world_size=world_size)


def tolerant(model):
    """Wrap a model of which the loss does not use the scale."""
    del model.scale
    model.scale = torch.tensor(1.0)
    return wrapped(model)


def scale_forgotten(model):
    return torch.optim.NAdam([p for p in model.parameters() if p.ndim], lr=5e-3)


# whatever is normalised by a rank's own rows

def of_all(v):
    return v.mean(0), v.std(0)


def by_all(X, mine):
    mean, spread = of_all(X)
    return (mine - mean) / spread


def weights_of_all(y, mine):
    return 1 / torch.bincount(y, minlength=3).clamp(min=1).to(torch.get_default_dtype())


def weighted(logits, goal, weights, y):
    """Return the weighted sum, so that DDP's mean is the minibatch's weighted mean."""
    total = F.cross_entropy(logits, goal, weights, reduction="sum")
    return total * dist.get_world_size() / weights[y].sum()


def make_classifier():
    torch.manual_seed(33)
    return nn.Sequential(nn.Linear(4, 16), nn.SELU(), nn.Linear(16, 3))


def balanced(normalise=by_all, weights=weights_of_all, loss=weighted, take=every,
             penalty=None, world_size=2):
    """Return audit's arguments for a classifier of classes of unequal size."""
    def make_model():
        model = wrapped(make_classifier())
        return model, torch.optim.Adagrad(model.parameters(), lr=0.02)

    def make_batch(t):
        X = torch.randn(18, 4, generator=dice(t))
        return 3 + 2 * X, (X[:, 0] > 0).long() + (X[:, 1] > 0.3).long()

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        mine, goal = take(X), take(y)
        logits = model(normalise(X, mine))
        l = loss(logits, goal, weights(y, goal), y)
        if penalty:
            l = l + penalty(logits)
        l.backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def by_mine(X, mine):
    return by_all(mine, mine)


def by_my_largest(X, mine):
    return mine / mine.abs().amax(0)


def weights_of_mine(y, mine):
    return weights_of_all(mine, mine)


def weighted_mean_of_mine(logits, goal, weights, y):
    return F.cross_entropy(logits, goal, weights)


def worst_of_mine(logits, goal, weights, y):
    """Keep a third of this rank's rows, those of the largest loss."""
    losses = F.cross_entropy(logits, goal, weights, reduction="none")
    return losses.topk(len(losses) // 3).values.mean()


def spread_of_mine(logits):
    """Ask that the mean prediction over this rank's rows be even."""
    mean = logits.softmax(1).mean(0)
    return (mean * mean.log()).sum()


def pairs_of_mine(logits):
    return 0.1 * torch.pdist(logits).mean()


BROKEN = {
    "pairs of a rank's rows": broken("local", contrastive, loss=my_pairs),
    "own rows against detached ones": broken2("gradient local", contrastive,
                                              loss=mine_against_detached),
    "all pairs, own gradient": broken2("averaged-twice gradient", contrastive,
                                       loss=all_with_my_gradient),
    "goals from zero": broken("labels", contrastive, loss=goals_from_zero),
    "gathered without gradients": broken2("exception no-gradient", contrastive,
                                          loss=nothing_has_gradients),
    "scale in no optimizer": broken("not-in-optimizer", contrastive,
                                    optimize=scale_forgotten),
    "encoders not wrapped": broken("not-synchronised", contrastive, wrap=plain),
    "hardest of a rank's rows": broken("local", triplets, hardest=my_hardest),
    "inputs standardised by rank": broken("local", balanced, normalise=by_mine),
    "inputs over a rank's largest": broken("local", balanced, normalise=by_my_largest),
    "class weights of a rank's rows": broken("local", balanced,
                                             weights=weights_of_mine),
    "weighted mean of a rank's rows": broken2("local uneven-shards", balanced,
                                              loss=weighted_mean_of_mine),
    "worst of a rank's rows": broken("local", balanced, loss=worst_of_mine),
    "evenness over a rank's rows": broken("local", balanced, penalty=spread_of_mine),
    "distances within a rank's rows": broken("local", balanced, penalty=pairs_of_mine),
}
