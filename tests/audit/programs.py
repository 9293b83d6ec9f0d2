"""Programs for `audit_step`, as sources with edits; all of them run in few groups of ranks.

HAND, ON_DDP, WORDS   right programs: make_model, make_batch, step
audited                  the findings of each, and what was not checked
"""

import random

import torch
import torch.distributed as dist

from manual_dp.audit.compare import take_steps
from manual_dp.audit.notes import unpack
from manual_dp.audit.rules import judge
from manual_dp.ranks import run_ranks

HEAD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
rank, world_size = dist.get_rank(), dist.get_world_size()

def make_batch(t):
    g = torch.Generator().manual_seed(t)
    X = torch.rand(ROWS, 5, generator=g)
    return X, torch.randint(3, (ROWS,), generator=g)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),
                         nn.Linear(8, 3))
"""
HAND = (
    HEAD
    + """
def make_model():
    model = net()
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

def step(model, optimizer, X, y):
    X_mine, y_mine = X[rank::world_size], y[rank::world_size]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X_mine), y_mine, reduction="sum")
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= len(X)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
"""
)
ON_DDP = (
    HEAD
    + """
def make_model():
    model = DDP(net())
    return model, torch.optim.Adam(model.parameters(), 0.01)

def step(model, optimizer, X, y):
    mine, targets = X.chunk(world_size)[rank], y.chunk(world_size)[rank]
    optimizer.zero_grad()
    for m, part in enumerate(mine.chunk(2)):
        model.require_backward_grad_sync = m == 1
        loss = F.cross_entropy(model(part), targets.chunk(2)[m]) / 2
        loss.backward()
    optimizer.step()
"""
)
WORDS = (
    HEAD.replace(
        """    X = torch.rand(ROWS, 5, generator=g)
    return X, torch.randint(3, (ROWS,), generator=g)
""",
        """    words = torch.randint(9, (ROWS, 6), generator=g)
    after_its_end = torch.arange(6) > torch.arange(ROWS)[:, None] % 5
    return words, words.masked_fill(after_its_end, -100)
""",
    )
    + """
def make_model():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(9, 8), nn.Dropout(0.1), nn.Linear(8, 9)))
    return model, torch.optim.AdamW(model.parameters(), 0.01)

def step(model, optimizer, words, targets):
    mine, aims = words[rank::world_size], targets[rank::world_size]
    count = (targets != -100).sum()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(mine).flatten(0, 1), aims.flatten(), reduction="sum")
    (loss * world_size / count).backward()
    optimizer.step()
"""
)


def edited(base, *edits, rows=12):
    """Return the source with `old -> new` for each edit, each found once."""
    for old, new in edits:
        if base.count(old) != 1:
            raise ValueError(
                f"an edit replaces a text that stands in the program once; {old!r} "
                f"stands there {base.count(old)} times: copy another or a longer text"
            )
        base = base.replace(old, new)
    return base.replace("ROWS", str(rows))


def audited(sources, world_size=2, reference=None, timeout=150):
    """Return (findings, unchecked) of each source, as `audit_step` has them."""
    alone = run_ranks(_measured, 1, reference or sources, timeout=timeout)[0]
    ranks = run_ranks(_measured, world_size, sources, timeout=timeout)
    verdicts = [
        judge([*map(unpack, runs)], unpack(one)) for one, *runs in zip(alone, *ranks)
    ]
    return [(v.findings, v.look_at + v.not_looked_at) for v in verdicts]


def _measured(sources):
    made, states = [], (torch.get_rng_state(), random.getstate())
    for source in sources:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        space = {"__name__": "program"}
        exec(compile(source, "program.py", "exec"), space)  # noqa: S102
        made.append(
            take_steps(space["make_model"], space["make_batch"], space["step"], 3)
        )
        dist.barrier()
    return made
