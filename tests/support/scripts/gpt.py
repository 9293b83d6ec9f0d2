"""Train a small GPT on made-up text: AdamW, clipping, accumulation without sync.

Flat, as such scripts are: settings first, then the model, then one long loop.
"""

import argparse
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from manual_dp.audit import watch

VOCABULARY, BLOCK, WIDTH, HEADS, LAYERS = 32, 16, 32, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        rows, time, _ = x.shape
        q, k, v = (part.view(rows, time, HEADS, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(rows, time, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(BLOCK, WIDTH)
        self.h = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(self.init_weights)
        self.wte.weight = self.lm_head.weight  # tied

    @staticmethod
    def init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_text(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (length,), generator=generator)
    return steps.cumsum(0) % VOCABULARY


def get_lr(step):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    share = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def get_batch():
    starts = torch.randint(len(text) - BLOCK, (args.rows,), generator=data_generator)
    chunks = torch.stack([text[i:i + BLOCK + 1] for i in starts.tolist()])
    return chunks[:, :-1], chunks[:, 1:]


def make_optimizer(model):
    params = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in params if p.dim() >= 2]
    vectors = [p for p in params if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1},
              {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--rows", type=int, default=4, help="of a micro-batch, of a rank")
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--grad-clip", type=float, default=0.25)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(args.seed)
text = make_text(4000)
data_generator = torch.Generator().manual_seed(args.seed + rank)

raw_model = GPT()
model = DDP(raw_model)
optimizer = make_optimizer(raw_model)
watch(model, optimizer, ignore=["rows-missed"])  # each rank draws its own

for step in range(args.steps):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)
    for micro in range(args.accumulate):
        last = micro == args.accumulate - 1
        X, Y = get_batch()
        with nullcontext() if last else model.no_sync():
            loss = model(X, Y) / args.accumulate
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 5 == 4:
        shown = loss.detach() * args.accumulate
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step + 1}: loss {shown.item() / world_size:.4f}")

dist.destroy_process_group()
