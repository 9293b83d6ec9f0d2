"""A right script to be watched, its edits, and how many of them are run on few ranks.

SCRIPT     a language model on DDP: accumulation, clipping, a schedule, padded rows
edited     the source with edits in it
watched    [(code, says), ...], unchecked and the report of each, in one group
"""

import contextlib
import io

import torch
import torch.distributed as dist

from manual_dp.audit import watch
from manual_dp.audit.summary import BY_HAND
from manual_dp.ranks import run_ranks
from tests.audit import programs

SCRIPT = """
import contextlib, itertools
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data import Dataset, TensorDataset

rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
words = torch.randint(12, (96, 7), generator=torch.Generator().manual_seed(5))
data = TensorDataset(words[:, :-1], words[:, 1:])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.hidden = nn.Embedding(12, 8), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.1)
        self.head = nn.Linear(8, 12)
    def forward(self, X):
        h = self.norm(self.hidden(self.words(X)).transpose(1, 2)).transpose(1, 2)
        return self.head(self.drop(torch.tanh(h)))

net = Net()
model = DDP(net)
torch.manual_seed(1 + rank)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
watched = watch(model, optimizer)
for epoch in range(1):
    sampler.set_epoch(epoch)
    for i, (X, y) in enumerate(loader):
        last = i % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(X).transpose(1, 2), y) / 2
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
watched.finish()
"""


def edited(*edits):
    """Return SCRIPT with `old -> new` for each edit, each found once."""
    return programs.edited(SCRIPT, *edits)


def watched(sources, world_size=2, timeout=100):
    """Run sources in one group of ranks; return what rank 0's reports say."""
    return run_ranks(_run, world_size, sources, timeout=timeout)[0]


def unchecked(report):
    """Return what a report looks at and not at, but for what none looks at."""
    return [
        words for words in report.look_at + report.not_looked_at if words != BY_HAND
    ]


def _run(sources):
    made = []
    for source in sources:
        torch.manual_seed(0)
        space = {"watch": watch, "__name__": "script"}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, "script.py", "exec"), space)  # noqa: S102
        report = space["watched"].report
        made.append(
            report
            and (
                [(f.code, f.says) for f in report.findings],
                unchecked(report),
                str(report),
            )
        )
        dist.barrier()
    return made
