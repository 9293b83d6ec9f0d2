"""Programs that read: speech, translation, bags of words, experts."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pack_sequence

from tests.support.heldout.parts import (
    AddUp,
    add_up,
    average,
    draw,
    draw_ids,
    mine,
    mlp,
)


def speech_ctc(bug=None):
    """Add the CTC losses of rows, over all ranks' target characters."""
    def make_model():
        model = DDP(mlp(4, 8, 5))
        return model, torch.optim.SGD(model.parameters(), 0.1)

    def make_batch(t):
        return (draw(t, 8, 12, 4), draw_ids(t, 4, 8, 5) + 1,
                draw_ids(t, 4, 8, seed=1) + 2)

    def step(model, optimizer, sound, text, lengths):
        rank, world = dist.get_rank(), dist.get_world_size()
        sound = mine(sound)
        if bug == "every_other_text":
            text, lengths = text[rank::world], lengths[rank::world]
        else:
            text, lengths = mine(text), mine(lengths)
        log_p = model(sound).log_softmax(2).transpose(0, 1)
        frames = torch.full((len(text),), 12)
        loss = F.ctc_loss(log_p, text, frames, lengths, reduction="sum")
        letters = lengths.sum() if bug == "letters_of_own_rank" \
            else add_up(lengths.sum()) / world
        optimizer.zero_grad()
        (loss / letters).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Translator(nn.Module):
    """Read one row of words, say another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 5, padding_idx=0)
        self.encoder = nn.GRU(5, 6, batch_first=True)
        self.decoder = nn.GRU(5, 6, batch_first=True)
        self.out = nn.Linear(6, 9)

    def forward(self, source, target):
        _, state = self.encoder(self.words(source))
        return self.out(self.decoder(self.words(target), state)[0])


def seq2seq(bug=None):
    """Add micro-batches of up to four rows, over all ranks' words but padding."""
    def make_model():
        model = Translator()
        return model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)

    def make_batch(t):
        length = draw_ids(t, 6, 16, 1, seed=1) + 1
        words = (draw_ids(t, 8, 16, 7) + 1).masked_fill(torch.arange(7) > length, 0)
        return {"source": draw_ids(t, 8, 16, 5, seed=2) + 1, "target": words}

    def step(model, optimizer, batch):
        source, target = mine(batch["source"]), mine(batch["target"])
        words = add_up((target[:, 1:] > 0).sum()) / dist.get_world_size()
        sources, targets = source.split(4), target.split(4)
        parts = len(source) // 4 if bug == "rest_of_the_rows_dropped" else len(sources)
        optimizer.zero_grad()
        for i in range(parts):
            out = model(sources[i], targets[i][:, :-1])
            loss = F.cross_entropy(out.flatten(0, 1), targets[i][:, 1:].flatten(),
                                   ignore_index=0, reduction="sum")
            (loss / words).backward()
            if bug == "a_step_for_each_micro_batch" or i == parts - 1:
                average(model.parameters())
                optimizer.step()
                optimizer.zero_grad()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class Reader(nn.Module):
    """Read sequences of any lengths, return a number for each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.out = nn.LSTM(3, 5), nn.Linear(5, 1)

    def forward(self, rows):
        packed = pack_sequence(rows, enforce_sorted=False)
        return self.out(self.lstm(packed)[1][0][-1]).squeeze(1)


def list_of_sequences(bug=None):
    """Take a list of ten sequences over three ranks, weighted by their number."""
    def make_model():
        model = DDP(Reader())
        return model, torch.optim.Adam(model.parameters(), 0.02)

    def make_batch(t):
        lengths = [2 + (3 * i + t) % 5 for i in range(10)]
        rows = [draw(t, n, 3, seed=i) for i, n in enumerate(lengths)]
        return rows, torch.stack([row[:, 0].sum() - row[-1, 1] for row in rows])

    def step(model, optimizer, rows, y):
        rank, world, total = dist.get_rank(), dist.get_world_size(), len(rows)
        if bug == "last_rank_begins_earlier":
            size = -(-total // world)
            first = min(rank * size, total - size)
            rows, y = rows[first:first + size], y[first:first + size]
            total = world * size
        else:
            seed = rank if bug == "shuffled_by_rank" else 0
            order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
            order = mine(order.tolist())
            rows, y = [rows[i] for i in order], y[order]
        loss = F.mse_loss(model(rows), y, reduction="sum")
        if bug == "mean_over_own_sequences":
            loss = loss / len(rows)
        else:
            loss = loss * world / total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


def sparse_embedding(bug=None):
    """Average the sparse gradient of a table of words beside the others."""
    def make_model():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(),
                              nn.Linear(12, 2))
        return model, torch.optim.SGD(model.parameters(), 0.3)

    def make_batch(t):
        return draw_ids(t, 20, 8, 3), draw_ids(t, 2, 8, seed=1)

    def average_sparse(p):
        if bug == "sparse_left_out":
            return
        if bug == "values_added_whatever_their_rows":
            grad = p.grad.coalesce()
            values = grad.values().clone()
            dist.all_reduce(values)
            p.grad = torch.sparse_coo_tensor(
                grad.indices(), values / dist.get_world_size(), grad.shape,
                check_invariants=False)
            return
        p.grad = p.grad.to_dense()
        average([p])

    def step(model, optimizer, words, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(words)), mine(y)).backward()
        for p in model.parameters():
            if p.grad.is_sparse:
                average_sparse(p)
            else:
                average([p])
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Experts(nn.Module):
    """Send each row to the expert that its gate likes best."""

    def __init__(self):
        super().__init__()
        self.gate = mlp(4, 6)
        self.experts = nn.ModuleList(mlp(4, 5, 2, seed=i) for i in range(6))

    def forward(self, x):
        likes = self.gate(x).softmax(1)
        best, which = likes.max(1)
        out = torch.zeros(len(x), 2)
        for i, expert in enumerate(self.experts):
            if (which == i).any():
                out[which == i] = expert(x[which == i])
        return out * best[:, None], likes, which


def mixture_of_experts(bug=None):
    """Replicate experts, of which a rank may use none; balance over all ranks' rows."""
    def make_model():
        model = Experts()
        return model, torch.optim.SGD(model.parameters(), 0.2)

    def make_batch(t):
        X = draw(t, 12, 4)
        return X, X[:, :2] * X[:, 2:]

    def balance(likes, which):
        used = F.one_hot(which, 6).sum(0)
        if bug == "balance_of_own_rows":
            return 6 * (used / len(likes) * likes.mean(0)).sum()
        rows = len(likes) * dist.get_world_size()
        return 6 * (add_up(used) / rows * AddUp.apply(likes.sum(0)) / rows).sum()

    def step(model, optimizer, X, y):
        out, likes, which = model(mine(X))
        optimizer.zero_grad()
        (F.mse_loss(out, mine(y)) + 0.1 * balance(likes, which)).backward()
        for p in model.parameters():
            if p.grad is None and bug != "unused_experts_not_averaged":
                p.grad = torch.zeros_like(p)
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}
