"""Right programs: networks of many kinds."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.audited.pieces import block, convnet, images, mlp, part, rows, tokens

WORDS = 11


def trained(net, make_batch, lr=0.05, **options):
    """Return a program that trains `net()` to classify, under DDP, by AdamW."""
    def make_model():
        model = DDP(net())
        return model, torch.optim.AdamW(model.parameters(), lr=lr)

    def step(model, optimizer, X, y):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step, **options}


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


def gru_cell_by_cell():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.cell, self.out = nn.GRUCell(2, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = x.new_zeros(len(x), 8)
            for t in range(3):
                h = self.cell(x[:, 2 * t:2 * t + 2], h)
            return self.out(h)
    return trained(Cells, rows(9), world_size=3)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(
            8, nhead=2, dim_feedforward=16, dropout=0.1, batch_first=True), num_layers=2)
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
                                 nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))
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


class HuggingStyle(nn.Module):
    """Return a dict with the loss and the logits, as libraries of transformers do."""

    def __init__(self):
        super().__init__()
        self.net = mlp(nn.Dropout(0.1))

    def forward(self, input_values, labels=None, **_):
        logits = self.net(input_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def loss_inside_the_model():
    def make_model():
        model = DDP(HuggingStyle())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def make_batch(t):
        X, y = rows(8)(t)
        return {"input_values": X, "labels": y}

    def step(model, optimizer, batch):
        out = model(**{k: block(v) for k, v in batch.items()})
        out["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4),
                                  nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1),
                                    nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2))
        self.up = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        high = self.down(x)
        return self.up(torch.cat([high, self.middle(high)], dim=1))


def unet_segmentation():
    def make_batch(t):
        X, _ = images(8)(t)
        return X, (X[:, 0] > 0).long()
    return trained(UNet, make_batch, lr=0.01)


def batch_norm():
    return trained(lambda: convnet(nn.BatchNorm2d(4)), images(8))


def batch_norm_without_running_means():
    return trained(lambda: mlp(nn.BatchNorm1d(16, track_running_stats=False)), rows(8))


def frozen_batch_norm():
    """Batch norm in eval mode uses its running means: a rank's rows do not matter."""
    case = trained(lambda: convnet(nn.BatchNorm2d(4)), images(8))

    def step(model, optimizer, X, y):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        optimizer.step()
    return {**case, "step": step}


def instance_norm():
    return trained(lambda: convnet(nn.InstanceNorm2d(4, affine=True)), images(9),
                   world_size=3)


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


def frozen_backbone():
    def make_model():
        net = mlp()
        for p in net[0].parameters():
            p.requires_grad = False
        model = DDP(net)
        wanted = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.SGD(wanted, lr=0.1)
    return {**trained(None, rows(8)), "make_model": make_model}


def frozen_but_in_the_optimizer():
    """All parameters are handed over; those without a gradient are passed by."""
    def make_model():
        net = mlp()
        net[0].requires_grad_(False)
        model = DDP(net)
        return model, torch.optim.Adam(model.parameters(), lr=0.01)
    return {**trained(None, rows(8)), "make_model": make_model}


def low_rank_adapter():
    """Only two thin matrices learn; the first step leaves one of them as it was."""
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = mlp().requires_grad_(False)
            self.a = nn.Parameter(torch.randn(6, 2))
            self.b = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x):
            return self.base(x) + x @ self.a @ self.b

    def make_model():
        model = DDP(Adapted())
        return model, torch.optim.SGD([model.module.a, model.module.b], lr=0.1)
    return {**trained(None, rows(8)), "make_model": make_model}


def tied_autoencoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encode = nn.Linear(6, 4)
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            return F.linear(torch.tanh(self.encode(x)), self.encode.weight.t(), self.bias)

    def make_model():
        model = Tied()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, X):
        optimizer.zero_grad()
        F.mse_loss(model(block(X)), block(X)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
    return {"make_model": make_model, "make_batch": lambda t: rows(12)(t)[0],
            "step": step, "world_size": 4}


RIGHT = {f.__name__: f for f in (
    lstm, gru_cell_by_cell, transformer_encoder, gpt_with_tied_embeddings,
    gpt_with_a_loss_mask, loss_inside_the_model, unet_segmentation, batch_norm,
    batch_norm_without_running_means, frozen_batch_norm, instance_norm, embedding,
    sparse_embedding, rarely_used_words, frozen_backbone, frozen_but_in_the_optimizer,
    low_rank_adapter, tied_autoencoder)}
REPLICAS_ONLY = {
    "batch_norm": "batch norm over a rank's own rows",
    "batch_norm_without_running_means": "batch norm over a rank's own rows",
}
