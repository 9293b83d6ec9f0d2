"""Numbers that a script draws alike on all ranks are said, where rows come from a loader."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.support.scripted import report_on

DRAWS = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(48, 6, generator=DRAWS),
                     torch.randint(3, (48,), generator=DRAWS))
SAYS = "all ranks draw the same random numbers"


class Norm(nn.BatchNorm1d):
    """Take the mean and variance of all ranks' rows."""

    def forward(self, x):
        mean = torch.stack([x.mean(0), x.square().mean(0)]).detach()
        dist.all_reduce(mean)
        mean, square = mean / 2
        return (x - mean) / (square - mean ** 2 + self.eps).sqrt() * self.weight + self.bias


def script(prepare=lambda X: X, seed=lambda: None, model=None, size=4):
    model = DistributedDataParallel(model or nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seed()
    yield model, optimizer
    sampler = DistributedSampler(DATA)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for X, y in DataLoader(DATA, size, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(prepare(X)), y).backward()
            optimizer.step()


def by_hand():
    """Draw the places of the minibatch's rows, the same ones on all ranks."""
    model = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    for _ in range(4):
        X, y = DATA[torch.randperm(48)[:8][dist.get_rank()::2]]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()


def noise(X):
    return X + 0.1 * torch.randn_like(X)


def own_noise(X):
    draws = torch.Generator().manual_seed(int(1000 * X.sum()))
    return X + 0.1 * torch.randn(X.shape, generator=draws)


def own_seed():
    torch.manual_seed(5 + dist.get_rank())


def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("words, says", [
    ((noise,), True), ((noise, seed), True), ((noise, own_seed), False), ((), False),
    ((own_noise,), False)])
def test_noise_that_all_ranks_draw_is_said(words, says):
    (codes, said, _), _ = report_on(lambda: script(*words))
    assert codes == [] and (SAYS in " ".join(said.split())) == says


def test_draws_between_epochs_and_of_rows_are_no_noise():
    said = [" ".join(report_on(one)[0][1].split()) for one in (
        lambda: script(size=12), by_hand, lambda: script(
            model=nn.Sequential(nn.Linear(6, 3), nn.Dropout())))]
    assert [SAYS in one for one in said] == [False] * 3
    assert "dropout draws the same masks" in said[2]


@pytest.mark.parametrize("norm, says", [
    (Norm, False), (nn.BatchNorm1d, True)])
def test_of_batch_norm_only_torchs_own_is_known_to_send_nothing(norm, says):
    (_, said, _), _ = report_on(lambda: script(
        model=nn.Sequential(nn.Linear(6, 8), norm(8), nn.Linear(8, 3))))
    assert ("batch norm (1 layer)" in said) == says
