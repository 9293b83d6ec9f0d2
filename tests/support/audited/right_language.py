"""Right programs: recurrent networks, transformers, embeddings."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.audited.pieces import part, tokens, trained

WORDS = 11


def labelled_tokens(n):
    return lambda t: (tokens(n)(t), tokens(n)(t)[:, 0] % 3)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 10, num_layers=2, dropout=0.2, batch_first=True,
                            bidirectional=True)
        self.out = nn.Linear(20, 3)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0].mean(1))


def lstm():
    return trained(LSTM, labelled_tokens(8), lr=0.01)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.1,
                                           batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.encoder(self.embed(x)).mean(1))


def transformer_encoder():
    return trained(Encoder, labelled_tokens(8), lr=1e-3)


class GPT(nn.Module):
    """A causal language model whose output layer is its embedding."""

    def __init__(self, width=8, length=7):
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.ln = nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width),
                                 nn.GELU(), nn.Linear(2 * width, width),
                                 nn.Dropout(0.1))
        self.lm_head = nn.Linear(width, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("mask", torch.ones(length, length).tril().bool())

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.wte(idx) + self.wpe(torch.arange(T, device=idx.device))
        q, k, v = (u.view(B, T, 2, -1).transpose(1, 2)
                   for u in self.qkv(self.ln(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1)
        x = x + self.proj(mixed)
        logits = self.lm_head(x + self.mlp(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))


def gpt_with_tied_embeddings():
    def make_model():
        model = DDP(GPT())
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        return model, torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                         {"params": others, "weight_decay": 0.0}],
                                        lr=3e-3, betas=(0.9, 0.95))

    def step(model, optimizer, idx):
        mine = part(idx)
        _, loss = model(mine[:, :-1], mine[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"make_model": make_model, "make_batch": tokens(8), "step": step}


def gpt_with_a_loss_mask():
    """Prompt tokens do not count; the loss is divided by the tokens of all ranks."""
    def make_model():
        model = GPT()
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    def make_batch(t):
        idx = tokens(8)(t)
        prompt = torch.arange(8)[:, None] % 5
        targets = torch.where(torch.arange(7)[None] <= prompt, -100, idx)
        return {"input_ids": idx, "labels": targets}

    def step(model, optimizer, batch):
        idx, labels = (part(batch[k]) for k in ("input_ids", "labels"))
        logits, _ = model(idx[:, :-1])
        counted = (labels[:, 1:] != -100).sum()
        dist.all_reduce(counted)
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(),
                               ignore_index=-100, reduction="sum") / counted
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Bag(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(WORDS, 6, mode="mean", sparse=sparse)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.bag(x))


def embedding():
    return trained(lambda: Bag(sparse=False), labelled_tokens(8))


def sparse_embedding():
    def make_model():
        net = Bag(sparse=True)
        return (DDP(net), torch.optim.SparseAdam(net.bag.parameters(), lr=0.01),
                torch.optim.Adam(net.out.parameters(), lr=0.01))

    def step(model, sparse, dense, X, y):
        sparse.zero_grad()
        dense.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        sparse.step()
        dense.step()
    return {"make_model": make_model, "make_batch": labelled_tokens(8), "step": step}


def rarely_used_words():
    """Each minibatch holds 2 words of 11: most rows of the embedding stay, and may."""
    def make_batch(t):
        X = tokens(8)(t) % 2 + 2 * t % 10
        return X, X[:, 0] % 3

    def make_model():
        model = DDP(Bag(sparse=False))
        return model, torch.optim.SGD(model.parameters(), lr=0.5)
    return {**trained(None, make_batch), "make_model": make_model}


RIGHT = {f.__name__: f for f in (
    lstm, transformer_encoder, gpt_with_tied_embeddings, gpt_with_a_loss_mask,
    embedding, sparse_embedding, rarely_used_words)}
