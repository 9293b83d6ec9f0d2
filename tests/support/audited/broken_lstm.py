"""Broken programs: an LSTM tagger averaged by hand, whose ranks do not call alike.

`tagger` is right: it averages every parameter, in order, and logs the mean loss.
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
    first,
    plain,
    world,
    wrapped,
)


class Tagger(nn.Module):
    """Tag words, with an embedding of each of two languages."""

    def __init__(self):
        super().__init__()
        self.languages = nn.ModuleList(nn.Embedding(9, 6) for _ in range(2))
        self.lstm = nn.LSTM(6, 10, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(20, 4)

    def forward(self, words, language):
        x = torch.stack([e(words) for e in self.languages], -1)
        chosen = F.one_hot(language, 2).to(x)[:, None, None]
        return self.tags(self.lstm((x * chosen).sum(-1))[0])


class OneLanguage(Tagger):
    """Look the words up only in the languages that the rows are in."""

    def forward(self, words, language):
        x = torch.zeros(*words.shape, 6)
        for i in language.unique().tolist():
            rows = language == i
            x[rows] = self.languages[i](words[rows])
        return self.tags(self.lstm(x)[0])


def make_tagger():
    torch.manual_seed(51)
    return Tagger()


def make_one_language():
    torch.manual_seed(51)
    return OneLanguage()


def grads(model):
    return [torch.zeros_like(p) if p.grad is None else p.grad
            for p in model.parameters()]


def average_all(model):
    for p, g in zip(model.parameters(), grads(model)):
        dist.all_reduce(g)
        p.grad = g / dist.get_world_size()


def log_mean(model, l):
    mean = l.detach().clone()
    dist.all_reduce(mean)
    model.logged = mean / dist.get_world_size()


def rms(model):
    return torch.optim.RMSprop(model.parameters(), lr=5e-3, momentum=0.5)


def languages_dealt(t, n):
    return torch.arange(n) % 2


def languages_sorted(t, n):
    return (torch.arange(n) >= n // 2).long()


def languages_late(t, n):
    return ((torch.arange(n) >= n // 2) & (torch.arange(n) % 2 == 1)).long()


def only_the_first(t, n):
    return torch.zeros(n, dtype=torch.long)


def always(model, l, t):
    return True


def tagger(net=make_tagger, wrap=plain, sync=average_all, log=log_mean, take=block,
           goes_on=always, languages=languages_dealt, before=None, fair=True,
           rows=12, world_size=2):
    """Return audit's arguments for an LSTM tagger with a log of its loss.

    fair: whether a rank's mean counts for as many rows as it is of.
    """
    def make_model():
        model = wrap(net())
        return model, rms(model)

    def make_batch(t):
        words = torch.randint(9, (rows, 5), generator=dice(t))
        return words, languages(t, rows), (words + words.roll(1, 1)) % 4

    def step(model, optimizer, words, language, tags):
        optimizer.seen = getattr(optimizer, "seen", -1) + 1
        if before:
            before(model)
        optimizer.zero_grad()
        scores = model(take(words), take(language))
        mine = take(tags)
        l = F.cross_entropy(scores.flatten(0, 1), mine.flatten())
        share = len(mine) * dist.get_world_size() / len(tags)
        (l * (share if fair else 1)).backward()
        if goes_on(model, l, optimizer.seen):
            sync(model)
            optimizer.step()
            log(model, l)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": world_size}


def log_on_rank0(model, l):
    if first():
        log_mean(model, l)


def wait_on_rank0(model, l):
    """Write a checkpoint on rank 0, and wait there for all."""
    if first():
        dist.barrier()


def gather_on_rank0(model, l):
    if first():
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, l.item())


def group_on_rank0(model, l):
    """Make a group of all for the log, on the rank that writes it."""
    if first():
        dist.new_group()


def from_each_rank(model, l):
    """Mean to send rank 0's loss and send everyone's own."""
    best = l.detach().clone()
    dist.broadcast(best, src=dist.get_rank())


def sum_or_gather(model, l):
    mean = l.detach().clone()
    if first():
        dist.all_reduce(mean)
    else:
        dist.all_gather([torch.empty_like(mean)
                         for _ in range(dist.get_world_size())], mean)


def received_from_nobody(model, l):
    """Let rank 0 wait for losses that the others send only when they are large."""
    rank, world_size = world()
    other = l.detach().clone()
    if rank == 0:
        for source in range(1, world_size):
            dist.recv(other, source)
    elif l > 100:
        dist.send(other, 0)


def nothing(model):
    pass


def without_none(model):
    """Average what has a gradient, on this rank."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def flat_without_none(model):
    """Average in one flat tensor what has a gradient, on this rank."""
    with_grad = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in with_grad])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(with_grad, flat.split([p.numel() for p in with_grad])):
        p.grad = g.view_as(p)


def in_an_order_of_its_own(model):
    """Start with what is largest, as each rank sees it, and sum."""
    order = sorted(model.parameters(), key=lambda p: p.grad.norm().item(),
                   reverse=not first())
    for p in order:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def last_layer_first_on_others(model):
    params = list(model.parameters())
    for p in params if first() else reversed(params):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def two_equal_shapes_swapped(model):
    """Average both languages' embeddings, each rank its own language first."""
    params = list(model.parameters())
    if dist.get_world_size() > 1 and not first():
        params[0], params[1] = params[1], params[0]
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def trimmed_on_others(model):
    """Leave the bias out of the last message, on all ranks but the first."""
    flat = torch.cat([g.flatten() for g in grads(model)])
    sent = flat if first() else flat[:-4]
    dist.all_reduce(sent)
    sent /= dist.get_world_size()
    sizes = [p.numel() for p in model.parameters()]
    for p, g in zip(model.parameters(), flat.split(sizes)):
        p.grad = g.view_as(p)


def raises_on_last(model):
    """Look for a file that only the first machine has."""
    rank, world_size = world()
    if rank == world_size - 1 and world_size > 1:
        raise FileNotFoundError("vocabulary.json")


def small_loss_here(model, l, t):
    """Leave out what is learnt already, as this rank sees it."""
    return t < 1 or first()


def ragged(v):
    """Give the last rank nothing where there are too few rows."""
    rank, world_size = world()
    n = -(-len(v) // world_size) if world_size > 1 else len(v)
    return v[rank * n:(rank + 1) * n]


BROKEN = {
    "rank 0 logs a sum": broken2("hang mismatch", tagger, log=log_on_rank0),
    "rank 0 waits": broken2("hang mismatch", tagger, log=wait_on_rank0),
    "rank 0 gathers": broken2("hang mismatch", tagger, log=gather_on_rank0),
    "broadcast from each rank": broken2("mismatch hang", tagger, log=from_each_rank),
    "sum meets gather": broken2("mismatch hang", tagger, log=sum_or_gather),
    "receives from nobody": broken("hang", tagger, log=received_from_nobody),
    "one rank without a language": broken2(
        "mismatch hang", tagger, net=make_one_language, languages=languages_late,
        sync=without_none),
    "flat, one without a language": broken(
        "mismatch", tagger, net=make_one_language, sync=flat_without_none,
        languages=languages_late),
    "languages that meet": broken2(
        "mismatch gradient", tagger, net=make_one_language, sync=without_none,
        languages=languages_sorted),
    "a language that nobody has": broken2(
        "unused-parameter exception", tagger, net=make_one_language, wrap=wrapped,
        sync=nothing, languages=only_the_first),
    "group made on rank 0": broken("hang", tagger, log=group_on_rank0),
    "order of its own": broken("mismatch", tagger, sync=in_an_order_of_its_own),
    "last layer first on others": broken("mismatch", tagger,
                                         sync=last_layer_first_on_others),
    "equal shapes swapped": broken2("mismatch gradient", tagger,
                                    sync=two_equal_shapes_swapped),
    "shorter message on others": broken("mismatch", tagger, sync=trimmed_on_others),
    "file missing on the last rank": broken("exception", tagger, before=raises_on_last),
    "DDP without what a rank lacks": broken2(
        "unused-parameter exception", tagger, net=make_one_language, wrap=wrapped,
        sync=nothing, languages=languages_sorted),
    "small losses left out": broken2("hang unequal-batches", tagger,
                                     goes_on=small_loss_here),
    "no rows for the last rank": broken2("uneven-shards no-gradient", tagger, rows=4,
                                         world_size=3, fair=False, take=ragged),
}
