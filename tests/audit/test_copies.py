"""A frozen copy of the model that nobody named is compared, and said to differ."""

import copy

import pytest
from torch import nn

from manual_dp.audit import audit_script
from manual_dp.audit.setup import copied

SCRIPT = """
import copy, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
rows = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
model = nn.Linear(6, 3)
average = copy.deepcopy(model).requires_grad_(False)
other = copy.deepcopy(nn.Linear(2, 2)).requires_grad_(False)
other.weight.fill_(dist.get_rank())
model = DDP(model)
if sys.argv[1] == "after":
    average = copy.deepcopy(model.module).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(rows)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for X, y in DataLoader(rows, 8 // dist.get_world_size(), sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        if sys.argv[2] == "all" or dist.get_rank() == 0:
            for mine, p in zip(average.parameters(), model.parameters()):
                mine.lerp_(p.detach(), 0.1)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("made, who, differs", [
    ("before", "all", False), ("before", "one", True), ("after", "one", True)])
def test_a_copy_that_one_rank_alone_changes_is_said(tmp_path, made, who, differs):
    (tmp_path / "train.py").write_text(SCRIPT)
    report = audit_script([tmp_path / "train.py", made, who], timeout=100)
    assert report.findings == []
    said = [words for words in report.unchecked if words.startswith("a copy of the model")]
    assert bool(said) == differs, report
    assert not said or "Linear 0.weight is not the same on all ranks" in said[0]


def test_a_copy_has_the_models_shapes_and_wants_no_gradient():
    model, other = nn.Linear(6, 3), nn.Linear(3, 6)
    frozen = [copy.deepcopy(one).requires_grad_(False) for one in (model, other)]
    found = copied([None, *frozen, copy.deepcopy(model)], [(3, 6), (3,)])
    assert found.keys() == {"Linear 0.weight", "Linear 0.bias"}
    assert found == copied([frozen[0]], [(3, 6), (3,)])
    frozen[0].weight[0, 0] += 1
    assert found != copied([frozen[0]], [(3, 6), (3,)])
